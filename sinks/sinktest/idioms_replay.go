package sinktest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/waits"
	"github.com/epochfence/epochfence/operate"
)

// playReplays runs idioms in replays. Each message of the guilty partition first becomes a dead
// letter, and an operator requests all replays. One process runs them all, because it polls for
// requests only every few seconds.
func playReplays(t testing.TB, m *mode, all []Idiom) {
	p := newPlay(t, m, &Idiom{Name: "replays"}, inReplay)
	p.size, p.guilty = epoch.Offset(len(all)), -1
	p.of = func(m consumer.Message) *Idiom {
		if m.Partition.Number == guiltyOne && int(m.Offset) < len(all) {
			return &all[m.Offset]
		}
		return nil
	}
	p.until = p.once(func(ls []operate.DeadLetter) bool { return len(ls) == len(all) }) // not before a halt of a moment is over
	first := p.runs("first")
	before := p.letters()
	if len(before) != len(all) {
		t.Fatalf("%d dead letters of %d; halts: %v", len(before), len(all), first.halts)
	}
	for _, l := range before {
		a := operate.DeadLetterAct{Kind: operate.Replay, Seen: l, By: "anna", Reason: "fixed"}
		if _, err := p.db.Operator(t).DoDeadLetter(t.Context(), a); err != nil {
			t.Fatal(err)
		}
	}
	requested := func(l operate.DeadLetter) bool { return l.Requested }
	p.replaying, p.until = true, p.once(func(ls []operate.DeadLetter) bool { return !slices.ContainsFunc(ls, requested) })
	second := p.runs("second")
	f := p.gather(second, p.runs("third"))
	f.blame(p.everyOffset())
	if len(f.wrongs) > 0 {
		t.Error(strings.Join(f.wrongs, "\n"))
	}
	var want []string
	for at := range p.size + 2 {
		want = append(want, value(at))
	}
	if got := f.lists[innocent]; !slices.Equal(got, want) {
		t.Errorf("the other partition has effects of %s; want %s", got, want)
	}
	for at, i := range all {
		f.judgeReplay(epoch.Offset(at), &i)
	}
}

// once returns a channel that is closed when the dead letters are so.
func (p *play) once(so func([]operate.DeadLetter) bool) <-chan struct{} {
	done := make(chan struct{})
	ctx, cancel := context.WithTimeout(p.t.Context(), playTime)
	go func() {
		defer cancel()
		if waits.Until(ctx, 20*time.Millisecond, func() bool { return so(p.letters()) }) {
			close(done)
		}
	}()
	return done
}

func (p *play) everyOffset() map[epoch.Offset]Outcome {
	all := map[epoch.Offset]Outcome{}
	for at := range p.size {
		all[at] = Costs
	}
	return all
}

// judgeReplay fails the test if the outcome of a dead letter is wrong.
func (f *facts) judgeReplay(at epoch.Offset, i *Idiom) {
	want := i.wantIn(inReplay, f.mode.Mode)
	effects, letters := 0, f.letters[guiltyOne][at]
	for _, v := range f.lists[guiltyOne] {
		if v == value(at) {
			effects++
		}
	}
	got := Outcome(fmt.Sprintf("%d effects, %d dead letters", effects, len(letters)))
	switch {
	case effects == 1 && len(letters) == 0:
		got = Alone
	case effects == 0 && len(letters) == 0:
		got = Undone
	case effects == 0 && len(letters) == 1 && !letters[0].Requested:
		got = Costs
		for _, s := range i.Says {
			if !strings.Contains(letters[0].ReplayError, s) {
				f.t.Errorf("%s: the reason does not say %q: %s", i.Name, s, letters[0].ReplayError)
			}
		}
	}
	if got != want {
		f.t.Errorf("%s: %s; want: %s: %+v", i.Name, got, want, letters)
	}
}

// playBackground runs idioms in [consumer.Handlers.Background], one after the other, concurrently
// with messages that are all innocent.
func playBackground(t testing.TB, m *mode, all []Idiom) {
	p := newPlay(t, m, &Idiom{Name: "background"}, inBackground)
	p.guilty = -1
	errs := make([]error, len(all))
	done := make(chan struct{})
	p.background = func(ctx context.Context, of epoch.Partition, do func(context.Context, func(context.Context, any) error) error) {
		if of.Number != guiltyOne || p.saw.again {
			return
		}
		for n, i := range all {
			errs[n] = errors.New("its goroutine has ended: runtime.Goexit")
			returned := make(chan struct{})
			go func() { // an idiom may end the goroutine
				defer close(returned)
				errs[n] = do(ctx, func(ctx context.Context, tx any) error {
					return p.call(ctx, tx, consumer.Message{Partition: p.partition(backgroundList), Offset: epoch.Offset(n)}, i.Do)
				})
			}()
			<-returned
			p.returned()
		}
		close(done)
	}
	p.until = done
	f := p.gather(p.runs("first"), p.runs("second"))
	f.effects(Undone, nil)
	f.blame(nil)
	for n, h := range f.first.halts {
		f.wrong("partition %d halts: %v", n, h)
	}
	if len(f.wrongs) > 0 {
		t.Error(strings.Join(f.wrongs, "\n"))
	}
	for n, i := range all {
		f.judgeBackground(epoch.Offset(n), &i, errs[n])
	}
}

// backgroundList is the partition number in the name of the list to which background work writes.
const backgroundList = 9

func (f *facts) judgeBackground(at epoch.Offset, i *Idiom, err error) {
	want := i.wantIn(inBackground, f.mode.Mode)
	effects := 0
	for _, v := range f.list(backgroundList) {
		if v == value(at) {
			effects++
		}
	}
	got := Outcome(fmt.Sprintf("%d effects, err = %v", effects, err))
	switch {
	case err == nil && effects == 1:
		got = Alone
	case err == nil && effects == 0:
		got = Undone
	case err != nil && effects == 0:
		got = Costs
		for _, s := range i.Says {
			if !strings.Contains(err.Error(), s) {
				f.t.Errorf("%s: the error does not say %q: %v", i.Name, s, err)
			}
		}
	}
	if got != want {
		f.t.Errorf("%s: %s, err = %v; want: %s", i.Name, got, err, want)
	}
}
