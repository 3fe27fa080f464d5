package sinktest

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"strings"
	"sync"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/operate"
)

// This file watches a play from outside, and decides from what it left which outcome the idiom has.

type story struct {
	play  *play
	size  epoch.Offset // messages in each of the two partitions
	err   error        // of Run
	again bool         // it is not the first process

	mu       sync.Mutex
	next     map[int32]epoch.Offset
	claimed  int
	claims   chan struct{} // closed when all partitions are claimed
	halts    map[int32]error
	attempts []consumer.Retried // attempts that counted
	alone    bool               // the guilty message was applied without another
	doubts   int
	loose    int  // retries that did not count
	passing  bool // a partition has halted, for a reason that passes
	called1  bool
	shared   bool // the first transaction that called the guilty message had both partitions

	over   chan struct{}
	isOver bool
	wrongs []string
}

// More than these mean that a consumer goes in circles.
const (
	manyDoubts = 40
	manyLoose  = 200
)

func (s *story) wrong(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wrongLocked(format, args...)
}

func (s *story) wrongLocked(format string, args ...any) {
	s.wrongs = append(s.wrongs, fmt.Sprintf(format, args...))
}

func (s *story) called() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.called1 = true
}

func (s *story) observe(e consumer.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch e := e.(type) {
	case consumer.Claimed:
		n := e.Fence.Partition.Number
		if _, again := s.next[n]; !again {
			if s.claimed++; s.claimed == 3 {
				close(s.claims)
			}
		}
		s.next[n] = e.Fence.Next
	case consumer.Advanced:
		n := e.Partition.Number
		s.play.ended(e.Partition)
		s.next[n] = e.To
		if n == guiltyOne && e.From <= s.play.guilty && s.play.guilty < e.To {
			s.alone = e.Messages == 1
		}
	case consumer.Transacted:
		if s.called1 {
			s.called1 = false
			s.shared = s.shared || e.Partitions == 2
		}
	case consumer.Retried:
		s.play.ended(e.Partition)
		if e.Attempt > 0 {
			s.attempts = append(s.attempts, e)
		} else if s.loose++; s.loose == manyLoose {
			s.wrongLocked("it is tried again and again, and never blamed: %v", e.Err)
			s.end()
		}
	case consumer.InDoubt:
		if s.doubts++; s.doubts == manyDoubts {
			s.wrongLocked("it is in doubt again and again: %v", e.Err)
			s.end()
		}
	case consumer.Halted:
		s.play.ended(e.Partition)
		s.halts[e.Partition.Number] = e.Err
		s.passing = s.passing || !e.Reason.NeedsOperator()
		if e.Partition.Number != guiltyOne {
			s.wrongLocked("%s, which has nothing to do with it, halts: %v", e.Partition, e.Err)
			s.end()
		}
	case consumer.NotClaimed:
		if s.loose++; s.loose == manyLoose {
			s.wrongLocked("it cannot be claimed: %v", e.Err)
			s.end()
		}
	case consumer.Replayed:
		if e.Final {
			return
		}
		if s.loose++; s.loose == manyLoose {
			s.wrongLocked("a replay is tried again and again: %v", e.Err)
			s.end()
		}
	}
	if s.next[innocent] == s.size && s.next[gate] == 1 && (s.next[guiltyOne] == s.size || s.halts[guiltyOne] != nil) {
		s.end()
	}
}

func (s *story) end() {
	if !s.isOver {
		s.isOver = true
		close(s.over)
	}
}

// readSource closes read once so many partitions have yielded messages.
type readSource struct {
	consumer.Source
	partitions int
	read       chan struct{}

	mu   sync.Mutex
	seen map[int32]bool
}

func newReadSource(s consumer.Source, partitions int) *readSource {
	return &readSource{Source: s, partitions: partitions, read: make(chan struct{}), seen: map[int32]bool{}}
}

// Run runs the watched source.
func (s *readSource) Run(ctx context.Context, joined func(error), own func(context.Context, consumer.Tenure)) error {
	return s.Source.Run(ctx, joined, func(ctx context.Context, t consumer.Tenure) { own(ctx, &readTenure{t, s}) })
}

func (s *readSource) yields(n int32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.seen[n] {
		return
	}
	if s.seen[n] = true; len(s.seen) == s.partitions {
		close(s.read)
	}
}

type readTenure struct {
	consumer.Tenure
	source *readSource
}

func (t *readTenure) Read(ctx context.Context, from epoch.Fence) iter.Seq2[consumer.Batch, error] {
	batches := t.Tenure.Read(ctx, from)
	return func(yield func(consumer.Batch, error) bool) {
		batches(func(b consumer.Batch, err error) bool {
			t.source.yields(t.Origin().Partition.Number)
			return yield(b, err)
		})
	}
}

// facts are the traces of a play.
type facts struct {
	*play
	first, second *story
	letters       map[int32]map[epoch.Offset][]operate.DeadLetter
	lists         map[int32][]string
	wrongs        []string
}

func (f *facts) wrong(format string, args ...any) {
	f.wrongs = append(f.wrongs, fmt.Sprintf(format, args...))
}

// judge fails the test if the outcome of the guilty message is not the wanted one, and for every other
// violation.
func (p *play) judge(first, second *story) {
	f := p.gather(first, second)
	got := f.outcome(p.guilty)
	want := p.want()
	if got != want {
		f.wrong("the guilty message: %s; want: %s%s", got, want, f.because())
	}
	outcomes := map[epoch.Offset]Outcome{p.guilty: got}
	if p.idiom.Then != nil {
		then := f.outcome(p.guilty + 1)
		outcomes[p.guilty+1] = then
		if then != p.idiom.ThenWant {
			f.wrong("the message behind it: %s; want: %s", then, p.idiom.ThenWant)
		}
	}
	f.effects(got, outcomes)
	f.blame(outcomes)
	f.reason(got)
	f.company(got)
	if len(f.wrongs) > 0 {
		p.t.Errorf("%s", strings.Join(f.wrongs, "\n"))
	}
}

func (p *play) want() Outcome { return p.idiom.wantIn(p.place, p.mode.Mode) }

func (p *play) gather(first, second *story) *facts {
	f := &facts{play: p, first: first, second: second, letters: map[int32]map[epoch.Offset][]operate.DeadLetter{}, lists: map[int32][]string{}}
	for _, l := range p.letters() {
		n := l.Message.Partition.Number
		if f.letters[n] == nil {
			f.letters[n] = map[epoch.Offset][]operate.DeadLetter{}
		}
		f.letters[n][l.Message.Offset] = append(f.letters[n][l.Message.Offset], l)
	}
	for _, n := range []int32{guiltyOne, innocent} {
		f.lists[n] = p.list(n)
	}
	return f
}

func (f *facts) outcome(at epoch.Offset) Outcome {
	effects := 0
	for _, v := range f.lists[guiltyOne] {
		if v == value(at) {
			effects++
		}
	}
	switch {
	case f.first.next[guiltyOne] <= at:
		return Halts
	case len(f.letters[guiltyOne][at]) > 0:
		return Costs
	case effects == 0:
		return Undone
	case f.tries[at] > 1 || f.place == inOnFailure || f.idiom.Everybody && f.first.alone:
		return Alone
	default:
		return Applied
	}
}

// effects checks that each innocent message's effect is there once, and in order, after the restart
// too.
func (f *facts) effects(got Outcome, outcomes map[epoch.Offset]Outcome) {
	var want, others []string
	for at := range f.size + 1 {
		o, guilty := outcomes[at]
		if f.idiom.Everybody && at < f.size {
			o, guilty = got, true
		}
		there := !guilty || o == Applied || o == Alone
		if there && (got != Halts || at < f.guilty) {
			want = append(want, value(at))
		}
		if there || !f.idiom.Everybody {
			others = append(others, value(at))
		}
	}
	if got := f.lists[guiltyOne]; !slices.Equal(got, want) {
		f.wrong("the guilty message's partition has effects of %s; want %s", got, want)
	}
	if got := f.lists[innocent]; !slices.Equal(got, others) {
		f.wrong("the other partition has effects of %s; want %s", got, others)
	}
}

// blame checks that no innocent message has an attempt or a dead letter.
func (f *facts) blame(outcomes map[epoch.Offset]Outcome) {
	for n, ls := range f.letters {
		for at, l := range ls {
			if _, guilty := outcomes[at]; n != guiltyOne || !guilty {
				f.wrong("the message %d/%d, which is innocent, is a dead letter: %s", n, at, l[0].Error)
			} else if len(l) > 1 {
				f.wrong("the message %d/%d is %d dead letters", n, at, len(l))
			}
		}
	}
	for _, s := range []*story{f.first, f.second} {
		for _, r := range s.attempts {
			if _, guilty := outcomes[r.Offset]; r.Partition.Number != guiltyOne || !guilty {
				f.wrong("the message %d/%d, which is innocent, has failed an attempt: %v", r.Partition.Number, r.Offset, r.Err)
			}
		}
		if s.err != nil {
			f.wrong("Run: %v", s.err)
		}
		f.wrongs = append(f.wrongs, s.wrongs...)
	}
}

// reason checks that observers learn the message and the reason.
func (f *facts) reason(got Outcome) {
	var told string
	switch {
	case got == Costs:
		told = f.letters[guiltyOne][f.guilty][0].Error
	case got == Halts && f.first.halts[guiltyOne] != nil:
		told = f.first.halts[guiltyOne].Error()
	default:
		return
	}
	for _, s := range append([]string{fmt.Sprintf("offset %d", f.guilty)}, f.idiom.Says...) {
		if !strings.Contains(told, s) {
			f.wrong("the reason does not say %q: %s", s, told)
		}
	}
}

func (f *facts) because() string {
	for _, l := range f.letters[guiltyOne][f.guilty] {
		return ": " + l.Error
	}
	if h := f.first.halts[guiltyOne]; h != nil {
		return ": " + h.Error()
	}
	return ""
}

// company checks that a message shared its transaction, unless its outcome is Alone.
func (f *facts) company(got Outcome) {
	switch {
	case f.place == inBatches || f.place == inOnFailure || f.idiom.Everybody:
	case got == Applied && f.first.alone:
		f.wrong("it was applied at the first call, and alone")
	case got == Alone && !f.first.alone:
		f.wrong("it was called %d times, and then applied with others", f.tries[f.guilty])
	}
	if h := f.first.halts[guiltyOne]; h != nil && got != Halts {
		f.wrong("its partition halted meanwhile: %v", h)
	}
}
