package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/epochfence/epochfence/consumer/memsource"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/suites/bubble"
	"github.com/epochfence/epochfence/sinks/memsink"
)

// ledger is what every call of Do answered.
type ledger struct {
	mu      sync.Mutex
	calls   int
	answers map[string]error
}

func backgroundOf(n int32) string { return fmt.Sprintf("beside partition %d", n) }

// background does work at random: some of it fails, panics, ends its goroutine,
// hangs, or is done by several goroutines that nobody waits for.
func (c *chaos) background(l *ledger) func(context.Context, background) {
	return func(ctx context.Context, b background) {
		workers := 1 + c.roll(3)
		for range workers - 1 {
			go c.work(ctx, b, l)
		}
		c.work(ctx, b, l)
		switch c.roll(20) {
		case 0:
			panic("background")
		case 1:
			runtime.Goexit()
		case 2:
			c.pause(20 * time.Second) // late
		}
	}
}

func (c *chaos) work(ctx context.Context, b background, l *ledger) {
	for range 1 + c.roll(30) {
		if ctx.Err() != nil && c.roll(3) > 0 {
			return
		}
		l.mu.Lock()
		l.calls++
		id := fmt.Sprintf("%d:%d", b.Epoch(), l.calls)
		l.mu.Unlock()
		doing, cancel := context.WithCancel(context.WithoutCancel(ctx))
		if c.roll(4) == 0 {
			time.AfterFunc(c.within(time.Second), cancel)
		}
		err := b.Do(doing, func(_ context.Context, tx tx) error {
			tx.Append(backgroundOf(b.Partition().Number), id)
			tx.Append("epochs of "+list(b.Partition().Number), fmt.Sprint(b.Epoch()))
			switch c.roll(30) {
			case 0:
				return errPoison
			case 1:
				panic("work")
			case 2:
				runtime.Goexit()
			case 3:
				c.pause(10 * time.Second)
			}
			return nil
		})
		cancel()
		l.mu.Lock()
		l.answers[id] = err
		l.mu.Unlock()
		if errors.Is(err, epoch.ErrStale) || errors.Is(err, epoch.ErrInDoubt) || errors.Is(err, epoch.ErrMoved) {
			<-ctx.Done() // or it was promised in vain
			return
		}
		if c.roll(2) == 0 {
			select {
			case <-b.Applied():
			case <-ctx.Done():
			case <-time.After(c.within(5 * time.Second)):
			}
		}
	}
}

// Whatever happens, what Do answered is what became of the work: done once, not
// done, or in doubt; and no work and no message of an earlier claim comes after
// one of a later.
func TestUnderAnyScheduleOfFaultsBackgroundWorkIsCommittedAsDoAnswers(t *testing.T) {
	seeds := uint64(bubble.Rounds(40))
	if testing.Short() {
		seeds = 5
	}
	met := map[string]int{}
	for seed := range seeds {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) { playBackground(t, seed, met) })
		})
	}
	t.Logf("met in %d seeds: %v", seeds, met)
	for _, answer := range []string{"done", "refused", "stale", "in doubt, and done", "in doubt, and not done"} {
		if met[answer] < 5 {
			t.Errorf("the schedules hardly met work that is %s: %v", answer, met)
		}
	}
}

func playBackground(t *testing.T, seed uint64, met map[string]int) {
	const partitions, messages = 4, 100
	c := &chaos{rng: rand.New(rand.NewPCG(seed, 2))}
	l := &ledger{answers: map[string]error{}}
	r := &rig{T: t, log: memsource.New("orders", partitions), sink: memsink.New(), trace: newTracer(t)}
	r.group().SetTerm(10 * time.Second)
	o := options{
		HangTimeout: []time.Duration{0, time.Hour}[c.roll(2)], MaxHung: 1000,
		MaxBatch: 1 + c.roll(60), Committers: 1 + c.roll(3), BatchTimeout: 4 * time.Second, MaxAttempts: 1000,
		Logger: slog.New(slog.DiscardHandler),
	}
	h := each(c.handle).Background(c.background(l))
	want := map[int32][]string{}
	var running, all []*process
	for i := range messages {
		n := int32(i % partitions)
		want[n] = append(want[n], fmt.Sprintf("%d/%d", n, i))
		r.log.Append(n, want[n][len(want[n])-1])
		if c.roll(10) == 0 {
			at := r.log.Append(n, "gone") // behind it there may be nothing for a while
			r.log.Delete(n, at)
		}
		c.pause(4 * time.Second)
		switch roll := c.roll(12); {
		case len(running) == 0 || roll == 0 && len(running) < 4:
			p := c.start(r, fmt.Sprintf("p%d", i), h, o)
			running, all = append(running, p), append(all, p)
		case roll == 1:
			c.freeze(running[c.roll(len(running))].member)
		case roll == 2:
			i := c.roll(len(running))
			running[i].stop()
			running = append(running[:i], running[i+1:]...)
		case roll == 3:
			i := c.roll(len(running))
			running[i].member.Kill()
			running = append(running[:i], running[i+1:]...)
		}
	}
	all = append(all, c.start(r, "last", h, o))
	select {
	case <-r.group().UntilApplied(r.Context()).Done():
	case <-time.After(24 * time.Hour):
		t.Errorf("seed %d: not done after a day", seed)
	}
	for _, p := range all {
		p.stop()
		if err := <-p.done; err != nil {
			t.Logf("%s: %v", p.member.Name(), err)
		}
	}
	r.pass(time.Hour) // for what is in flight

	committed := map[string]int{}
	for n := range int32(partitions) {
		got := slices.DeleteFunc(r.sink.List(list(n)), func(v string) bool { return v == "gone" }) // or just not yet
		if !slices.Equal(got, want[n]) {
			t.Errorf("seed %d: effects of partition %d:\n got %v\nwant %v", seed, n, got, want[n])
		}
		for _, id := range r.sink.List(backgroundOf(n)) {
			committed[id]++
		}
		r.wantRising("epochs of "+list(n), "")
		r.wantRising(backgroundOf(n), ":")
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for id, err := range l.answers {
		times, doubt := committed[id], errors.Is(err, epoch.ErrInDoubt)
		switch {
		case err == nil && times == 1:
			met["done"]++
		case doubt && times == 1:
			met["in doubt, and done"]++
		case doubt && times == 0:
			met["in doubt, and not done"]++
		case err != nil && times == 0 && errors.Is(err, epoch.ErrStale):
			met["stale"]++
		case err != nil && times == 0:
			met["refused"]++
		default:
			t.Errorf("seed %d: work %s: Do = %v, committed %d times", seed, id, err, times)
		}
		delete(committed, id)
	}
	if len(committed) > 0 {
		t.Errorf("seed %d: committed without an answer: %v", seed, committed)
	}
}

// wantRising wants the epochs in front of the separator never to fall.
func (r *rig) wantRising(list, separator string) {
	r.Helper()
	var before epoch.Epoch
	for _, line := range r.sink.List(list) {
		number := line
		if separator != "" {
			number, _, _ = strings.Cut(line, separator)
		}
		var e epoch.Epoch
		if _, err := fmt.Sscan(number, &e); err != nil || e < before {
			r.Errorf("%s: epoch %s after %d (%v)", list, number, before, err)
		}
		before = e
	}
}
