package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/memsource"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/suites/bubble"
	"github.com/epochfence/epochfence/sinks/memsink"
)

// chaos plays one seed: processes come, go, freeze and are killed; commits are
// delayed, refused, lost and acknowledged in vain; handlers fail and hang.
type chaos struct {
	mu  sync.Mutex
	rng *rand.Rand

	backup *memsink.Snapshot
}

func (c *chaos) roll(n int) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.rng.IntN(n)
}

func (c *chaos) within(d time.Duration) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Duration(c.rng.Int64N(int64(d)))
}

func (c *chaos) pause(most time.Duration) { <-time.After(c.within(most)) }

func (c *chaos) handle(ctx context.Context, tx tx, m consumer.Message, e epoch.Epoch) error {
	tx.Append(list(m.Partition.Number), string(m.Value))
	tx.Append("epochs of "+list(m.Partition.Number), fmt.Sprint(e))
	switch c.roll(60) {
	case 0:
		return errPoison
	case 1:
		panic("poison")
	case 2:
		c.pause(12 * time.Second) // past every timeout at times, and deaf to ctx
	}
	return nil
}

func (c *chaos) commit(m *memsource.Member, do func() error) error {
	switch c.roll(25) {
	case 0:
		return errors.Join(do(), epoch.ErrInDoubt)
	case 1:
		return epoch.ErrInDoubt
	case 2:
		time.AfterFunc(c.within(20*time.Second), func() { _ = do() }) // in flight
		return epoch.ErrInDoubt
	case 3: // the process is frozen with its transaction open
		m.Freeze()
		c.pause(40 * time.Second)
		m.Thaw()
	case 4:
		return errors.New("serialization failure")
	}
	return do()
}

func (c *chaos) claim(do func() error) error {
	switch c.roll(10) {
	case 0:
		return errors.Join(do(), epoch.ErrInDoubt)
	case 1:
		c.pause(15 * time.Second) // frozen between confirm and swap
	}
	return do()
}

func (c *chaos) start(r *rig, name string, h handlers, o options) *process {
	p := r.process(name, nil)
	p.sink.Script(memsink.Hooks{
		Commit:     func(_ context.Context, _ []epoch.Advance, do func() error) error { return c.commit(p.member, do) },
		CommitHeld: func(_ context.Context, _ epoch.Hold, do func() error) error { return c.commit(p.member, do) },
		Claim:      func(_ context.Context, _ epoch.Claim, do func() error) error { return c.claim(do) },
	})
	p.run(func(ctx context.Context) error {
		return consumer.Run(ctx, p.member, p.sink, h, p.watched(o))
	})
	return p
}

func TestUnderAnyScheduleOfFaultsEachMessageIsAppliedOnceInOrder(t *testing.T) {
	seeds := uint64(bubble.Rounds(60))
	if testing.Short() {
		seeds = 5
	}
	meetChaos(t, seeds, false,
		consumer.Stale{}, consumer.InDoubt{}, consumer.Retried{}, consumer.Drained{}, consumer.Claimed{})
}

// L4: what a sink loses is applied again, though no message comes any more.
func TestUnderAnyScheduleOfFaultsWhatASinkLosesComesBack(t *testing.T) {
	seeds := uint64(bubble.Rounds(40))
	if testing.Short() {
		seeds = 5
	}
	meetChaos(t, seeds, true, consumer.WentBack{})
}

func meetChaos(t *testing.T, seeds uint64, goesBack bool, wanted ...consumer.Event) {
	met := map[string]int{}
	for seed := range seeds {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) { playChaos(t, seed, goesBack, met) })
		})
	}
	t.Logf("met in %d seeds: %v", seeds, met)
	for _, event := range wanted {
		if met[fmt.Sprintf("%T", event)] < 5 {
			t.Errorf("the schedules hardly met %T: %v", event, met)
		}
	}
}

// maybeGoBack takes a backup of the sink or restores one.
func (c *chaos) maybeGoBack(r *rig, partitions int) {
	switch c.roll(10) {
	case 0:
		if len(r.sink.Fences()) == partitions {
			backup := r.sink.Snapshot()
			c.backup = &backup
		}
	case 1:
		if c.backup != nil {
			r.sink.Restore(*c.backup)
		}
	}
}

func playChaos(t *testing.T, seed uint64, goesBack bool, met map[string]int) {
	const partitions, messages = 4, 150
	c := &chaos{rng: rand.New(rand.NewPCG(seed, 0))}
	r := &rig{T: t, log: memsource.New("orders", partitions), sink: memsink.New(), trace: newTracer(t)}
	r.group().SetTerm(10 * time.Second)
	o := options{
		HangTimeout: []time.Duration{0, time.Hour}[c.roll(2)], MaxHung: 1000,
		MaxBatch: 1 + c.roll(60), Committers: 1 + c.roll(2), BatchTimeout: 4 * time.Second, MaxAttempts: 1000,
		Logger: slog.New(slog.DiscardHandler),
	}

	want := map[int32][]string{}
	var running, all []*process
	for i := range messages {
		n := int32(i % partitions)
		want[n] = append(want[n], fmt.Sprintf("%d/%d", n, i))
		r.log.Append(n, want[n][len(want[n])-1])
		if c.roll(3) == 0 {
			c.pause(5 * time.Second)
		}
		if goesBack {
			c.maybeGoBack(r, partitions)
		}
		switch roll := c.roll(12); {
		case len(running) == 0 || roll == 0 && len(running) < 4:
			p := c.start(r, fmt.Sprintf("p%d", i), each(c.handle), o)
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
	all = append(all, c.start(r, "last", each(c.handle), o))
	applied := func() bool { // the source's positions may be ahead of a sink that went back
		for n := range int32(partitions) {
			if r.sink.Fences()[r.partition(n)].Next < epoch.Offset(len(want[n])) {
				return false
			}
		}
		return true
	}
	for began := time.Now(); !applied(); r.pass(time.Second) {
		if time.Since(began) > 24*time.Hour {
			t.Errorf("seed %d: not done after a day", seed)
			break
		}
	}
	for _, p := range all {
		p.stop()
		if err := <-p.done; err != nil { // killed, or deaf to the source for too long
			t.Logf("%s: %v", p.member.Name(), err)
		}
		for _, e := range p.events {
			met[fmt.Sprintf("%T", e)]++
		}
	}
	r.pass(time.Minute) // for the handlers that Run has left behind
	for n := range int32(partitions) {
		r.wantEffects(n, want[n]...)
		epochs := r.sink.List("epochs of " + list(n))
		for i := 1; i < len(epochs); i++ {
			var before, after epoch.Epoch
			_, _ = fmt.Sscan(epochs[i-1], &before)
			_, _ = fmt.Sscan(epochs[i], &after)
			if after < before {
				t.Errorf("seed %d: epoch %d after %d in partition %d", seed, after, before, n)
			}
		}
	}
}

func (c *chaos) freeze(m *memsource.Member) {
	m.Freeze()
	time.AfterFunc(c.within(40*time.Second), m.Thaw)
}
