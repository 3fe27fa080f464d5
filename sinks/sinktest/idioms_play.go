package sinktest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/memsource"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/operate"
)

// The partitions of a play. The message in the gate's partition holds its transaction open until
// all other messages can be read, so that they share the next transaction.
const (
	guiltyOne int32 = iota // has the guilty message
	innocent
	gate
)

// play is one idiom in one mode, on a database that it may share with other plays.
type play struct {
	t     testing.TB
	mode  *mode
	idiom *Idiom
	db    idiomDatabase
	place string

	log    *memsource.Log
	group  *memsource.Group
	size   epoch.Offset // messages in each of the two partitions
	guilty epoch.Offset

	opened chan struct{} // closed when the gate is open
	// Only for plays of several idioms.
	of         func(m consumer.Message) *Idiom
	replaying  bool
	background func(ctx context.Context, p epoch.Partition, do func(context.Context, func(context.Context, any) error) error)
	until      <-chan struct{} // the process continues until then

	mu      sync.Mutex
	running []chan struct{} // to be closed when the sink knows that a guilty message's handler has returned
	strays  []chan struct{} // closed when a goroutine that a handler has left behind has ended
	tries   map[epoch.Offset]int
	saw     *story
}

// plays makes the topics distinct.
var plays atomic.Int64

// playTime limits a run of a consumer that makes no progress.
const playTime = time.Minute

func newPlay(t testing.TB, m *mode, i *Idiom, place string) *play {
	p := &play{
		t: t, mode: m, idiom: i, place: place, db: m.open(t), size: 20, guilty: 10,
		opened: make(chan struct{}), tries: map[epoch.Offset]int{},
	}
	if i.Everybody {
		p.size, p.guilty = 5, 2
	}
	p.log = memsource.New(fmt.Sprintf("%s %d", m.Mode, plays.Add(1)), 3)
	p.group = p.log.Group("idioms")
	return p
}

// playIn runs an idiom in one place and judges it. It repeats the play if the guilty
// message shared no transaction at its first call. It repeats it up to three times if a message
// that should be applied at once was retried, or if a partition halted for a reason that
// passes. A stalled machine causes all of these.
func playIn(t testing.TB, m *mode, i *Idiom, place string) {
	again := 0
	for range 50 {
		p := newPlay(t, m, i, place)
		first := p.runs("first")
		if !first.shared {
			continue
		}
		if p.want() == Applied && first.loose+first.doubts > 0 && again < 3 {
			again++
			continue
		}
		second := p.runs("second")
		if (first.passing || second.passing) && again < 3 {
			again++
			continue
		}
		p.judge(first, second)
		return
	}
	t.Fatal("the guilty message never shared its first transaction")
}

func (p *play) runs(name string) *story {
	s := &story{play: p, size: p.size, again: p.saw != nil, next: map[int32]epoch.Offset{}, halts: map[int32]error{}, over: make(chan struct{}), claims: make(chan struct{})}
	if s.again {
		s.size = p.saw.size + 1
	}
	p.saw = s
	ctx, cancel := context.WithTimeout(p.t.Context(), playTime)
	defer cancel()
	returned := make(chan struct{})
	if s.again {
		p.append(1)
	} else {
		p.log.Append(gate, "gate")
	}
	source := newReadSource(p.group.Member(name), 3)
	go func() {
		defer close(returned)
		s.err = p.db.run(ctx, p.t, source, p.handlers(), p.options(s))
	}()
	if !s.again {
		p.open(ctx, s, source.read)
	}
	select {
	case <-s.over:
	case <-ctx.Done():
		s.wrong("it came to no end in %v", playTime)
	}
	if p.until != nil {
		select {
		case <-p.until:
		case <-ctx.Done():
			s.wrong("%s came to no end in %v", p.place, playTime)
		}
		p.until = nil
	}
	cancel()
	<-returned
	p.returned()
	p.letStrays(p.t.Context())
	return s
}

func (p *play) stray(f func()) {
	done := make(chan struct{})
	p.mu.Lock()
	p.strays = append(p.strays, done)
	p.mu.Unlock()
	go func() {
		defer close(done)
		f()
	}()
}

// next is called when the sink calls the handler again for a partition. Goroutines that the guilty
// message's handler has left behind get their chance to do harm first.
func (p *play) next(ctx context.Context, of epoch.Partition) {
	if p.isGuilty(of) {
		p.returned()
		p.letStrays(ctx)
	}
}

func (p *play) ended(of epoch.Partition) {
	if p.isGuilty(of) {
		p.returned()
	}
}

// isGuilty reports whether the partition has the guilty message. It returns false for background
// work, which runs concurrently: its stray goroutines may have to wait for the messages'
// transaction.
func (p *play) isGuilty(of epoch.Partition) bool {
	return of.Number == guiltyOne && p.background == nil
}

func (p *play) returned() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, r := range p.running {
		close(r)
	}
	p.running = nil
}

func (p *play) letStrays(ctx context.Context) {
	p.mu.Lock()
	strays := p.strays
	p.mu.Unlock()
	for _, done := range strays {
		select {
		case <-done:
		case <-ctx.Done():
			return
		}
	}
}

func (p *play) append(n int) {
	for _, partition := range []int32{innocent, guiltyOne} {
		for range n {
			_, end := p.log.Bounds(partition)
			p.log.Append(partition, value(end))
		}
	}
}

func value(at epoch.Offset) string { return strconv.FormatInt(int64(at), 10) }

// open lets the gate's transaction end once all partitions have been read.
func (p *play) open(ctx context.Context, s *story, read <-chan struct{}) {
	defer close(p.opened)
	select {
	case <-s.claims:
		p.append(int(p.size))
	case <-ctx.Done():
	}
	select {
	case <-read:
	case <-ctx.Done():
	}
	if p.mode.Virtual {
		synctest.Wait() // outside of a bubble, a short wait usually has the same effect: see playIn
	}
}

func (p *play) options(s *story) consumer.Options {
	o := consumer.Options{
		MaxAttempts: 2, Committers: 1, RetryMin: time.Millisecond, RetryMax: 2 * time.Millisecond, HaltMin: 5 * time.Millisecond, HaltMax: 20 * time.Millisecond,
		Logger: slog.New(slog.DiscardHandler), Observe: s.observe,
	}
	if p.idiom.Impatient {
		o.BatchTimeout = 500 * time.Millisecond
	}
	return o
}

func (p *play) handlers() idiomHandlers {
	h := idiomHandlers{each: p.each, onFailure: p.db.DeadLetter, background: p.background}
	switch p.place {
	case inBatches:
		h.batch = p.batch
	case inOnFailure:
		h.onFailure = p.onFailure
	}
	return h
}

func (p *play) each(ctx context.Context, tx any, m consumer.Message) error {
	p.next(ctx, m.Partition)
	return p.handle(ctx, tx, m)
}

func (p *play) handle(ctx context.Context, tx any, m consumer.Message) error {
	do := p.does(m)
	switch {
	case m.Partition.Number == gate:
		if err := p.waitAtGate(ctx); err != nil {
			return err
		}
		return p.db.Append(ctx, tx, m.Partition.String(), value(m.Offset))
	case do == nil:
		return p.db.Append(ctx, tx, m.Partition.String(), value(m.Offset))
	case p.place == inOnFailure, p.place == inReplay && !p.replaying:
		p.saw.called()
		return consumer.Permanent(errPutAside)
	default:
		return p.call(ctx, tx, m, do)
	}
}

// errPutAside is the failure of a message whose idiom runs in another place.
var errPutAside = fmt.Errorf("put aside")

// batch continues after the guilty message, like a handler that checks errors at the end. If an
// idiom undoes only its message, batch fails the message while it shares the call: the other
// messages of the call would be undone too if nothing is written after it.
func (p *play) batch(ctx context.Context, tx any, ms []consumer.Message) error {
	p.next(ctx, ms[0].Partition)
	var failed error
	for _, m := range ms {
		err := p.handle(ctx, tx, m)
		if err == nil && len(ms) > 1 && p.does(m) != nil && p.want() == Undone {
			err = errInCompany
		}
		if err != nil && failed == nil {
			failed = err
		}
	}
	return failed
}

var errInCompany = errors.New("the message is to be alone in its call")

func (p *play) onFailure(ctx context.Context, tx any, m consumer.Message, e epoch.Epoch, cause error) error {
	p.next(ctx, m.Partition)
	if do := p.does(m); do != nil {
		return p.call(ctx, tx, m, do)
	}
	return p.db.DeadLetter(ctx, tx, m, e, cause)
}

// waitAtGate returns nil once the gate is open. After a restart it is already open.
func (p *play) waitAtGate(ctx context.Context) error {
	select {
	case <-p.opened:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (p *play) does(m consumer.Message) func(c *Call) error {
	if p.of != nil {
		if i := p.of(m); i != nil {
			return i.Do
		}
		return nil
	}
	switch at := m.Offset; {
	case m.Partition.Number == gate:
		return nil
	case p.idiom.Everybody && at < p.size:
		return p.idiom.Do
	case m.Partition.Number != guiltyOne:
		return nil
	case at == p.guilty:
		return p.idiom.Do
	case at == p.guilty+1:
		return p.idiom.Then
	}
	return nil
}

func (p *play) call(ctx context.Context, tx any, m consumer.Message, do func(c *Call) error) error {
	p.saw.called()
	c := &Call{Ctx: ctx, TX: tx, Message: m, play: p, Returned: make(chan struct{})}
	p.mu.Lock()
	p.running = append(p.running, c.Returned)
	p.mu.Unlock()
	if m.Partition.Number == guiltyOne {
		p.mu.Lock()
		p.tries[m.Offset]++
		c.Try = p.tries[m.Offset]
		p.mu.Unlock()
	}
	return do(c)
}

func (p *play) letters() []operate.DeadLetter {
	if p.db.Operator == nil {
		p.t.Fatal("Idioms needs Operator and DeadLetter: it reads outcomes from the dead letters")
	}
	q := operate.DeadLetterQuery{Filter: operate.Filter{Group: "idioms", Topic: p.log.Name()}}
	ls, err := p.db.Operator(p.t).DeadLetters(p.t.Context(), q)
	if err != nil {
		p.t.Fatal(err)
	}
	return ls
}

func (p *play) partition(n int32) epoch.Partition {
	return epoch.Partition{Group: "idioms", Topic: p.log.Name(), Number: n}
}

func (p *play) list(n int32) []string {
	got, err := p.db.List(p.t.Context(), p.partition(n).String())
	if err != nil {
		p.t.Fatal(err)
	}
	return got
}
