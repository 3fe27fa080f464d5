package consumer_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/memsource"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/sinks/memsink"
)

// unaware is a sink that does not notice when its server is another one.
type unaware struct{ epoch.Sink[tx] }

func (s unaware) Facts() epoch.Facts {
	facts := s.Sink.Facts()
	facts.Replaced = nil
	return facts
}

func (r *rig) startUnaware(name string, h handler, o options) *process {
	p := r.process(name, nil)
	p.run(func(ctx context.Context) error {
		return consumer.Run(ctx, p.member, unaware{p.sink}, consumer.Each(h), p.watched(o))
	})
	return p
}

// append adds messages to a partition and returns what record makes of them.
func (r *rig) append(n int32, from, to int) []string {
	var values []string
	for i := from; i < to; i++ {
		values = append(values, fmt.Sprintf("%d/%d", n, i))
	}
	r.log.Append(n, values...)
	return values
}

// L4: nothing comes that a transaction could find out by.
func TestEffectsThatASinkLostComeBackThoughNoMessageComes(t *testing.T) {
	for name, c := range map[string]struct {
		term, within time.Duration
		start        func(r *rig) *process
	}{
		"within two terms, by a look now and then": {memsource.DefaultTerm, 2 * memsource.DefaultTerm, func(r *rig) *process { return r.startUnaware("a", record, options{}) }},
		"at once, if the sink notices":             {time.Hour, 5 * time.Second, func(r *rig) *process { return r.start("a", each(record), options{}) }},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, 3, func(r *rig) {
				r.group().SetTerm(c.term)
				p := c.start(r)
				var want [3][]string
				for n := range int32(3) {
					want[n] = r.append(n, 0, 1000)
				}
				synctest.Wait()
				backup := r.sink.Snapshot()
				for n := range int32(3) {
					want[n] = append(want[n], r.append(n, 1000, 1400)...)
				}
				synctest.Wait()
				r.pass(3 * c.term)
				r.sink.Restore(backup)
				r.pass(c.within)
				for n := range int32(3) {
					r.wantEffects(n, want[n]...)
					r.wantNext(n, 1400)
				}
				back := seen[consumer.WentBack](p)
				if len(back) != 3 || back[0].Was.Next != 1400 || back[0].Now.Next != 1000 {
					t.Errorf("events: %+v", back)
				}
				if n := len(seen[consumer.Stale](p)); n > 0 {
					t.Errorf("%d partitions are said to belong to a later claim", n)
				}
				p.end()
			})
		})
	}
}

// One partition has messages, and its commit is refused; the others need not
// wait for their turn to be looked at.
func TestWhereOneFenceWentBackTheOthersAreLookedAtAtOnce(t *testing.T) {
	inBubble(t, 5, func(r *rig) {
		r.group().SetTerm(time.Hour)
		p := r.startUnaware("a", record, options{})
		var want [5][]string
		for n := range int32(5) {
			want[n] = r.append(n, 0, 10)
		}
		synctest.Wait()
		backup := r.sink.Snapshot()
		for n := range int32(5) {
			want[n] = append(want[n], r.append(n, 10, 14)...)
		}
		synctest.Wait()
		r.sink.Restore(backup)
		want[2] = append(want[2], r.append(2, 14, 15)...)
		r.pass(10 * time.Second)
		for n := range int32(5) {
			r.wantEffects(n, want[n]...)
		}
		if n := len(seen[consumer.WentBack](p)); n != 5 {
			t.Errorf("%d partitions are said to have gone back, want 5", n)
		}
		p.end()
	})
}

func TestASinkThatWentBackIsSaidAsThatAndNotAsALaterClaim(t *testing.T) {
	for name, c := range map[string]struct {
		lost string // what the backup lacks
		by   func(r *rig)
		says string
	}{
		"a refusal under a lost claim":     {"claim", func(r *rig) { r.log.Append(0, "more") }, "it was at offset 14 under epoch 2, now at 10 under epoch 1; the effects of 4 offsets were lost"},
		"a refusal from a lost position":   {"position", func(r *rig) { r.log.Append(0, "more") }, "it was at offset 14 under epoch 1, now at 10 under epoch 1 (unless"},
		"a look at a quiet partition":      {"claim", func(r *rig) { r.pass(time.Hour) }, "it was at offset 14 under epoch 2, now at 10 under epoch 1; the effects of 4 offsets were lost"},
		"a look that finds the claim ours": {"position", func(r *rig) { r.pass(time.Hour) }, "it was at offset 14 under epoch 1, now at 10 under epoch 1 (unless"},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, 1, func(r *rig) {
				var backup memsink.Snapshot
				r.append(0, 0, 10)
				if c.lost == "claim" { // of the process that finds out
					before := r.startUnaware("before", record, options{})
					synctest.Wait()
					before.end()
					backup = r.sink.Snapshot()
				}
				var log bytes.Buffer
				p := r.startUnaware("a", record, options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
				synctest.Wait()
				if c.lost == "position" {
					backup = r.sink.Snapshot()
				}
				r.append(0, 10, 14)
				synctest.Wait()
				r.sink.Restore(backup)
				c.by(r)
				r.pass(10 * time.Second)
				wantOne[consumer.WentBack](p)
				p.end()
				if got := log.String(); !strings.Contains(got, c.says) || strings.Contains(got, "later claim") || strings.Count(got, "sink went back:") != 1 {
					t.Errorf("the log does not say once %q:\n%s", c.says, got)
				}
				if got := len(r.sink.List(list(0))); got < 14 {
					t.Errorf("%d effects of 14", got)
				}
			})
		})
	}
}

// A connection is lost in a failover before anything is refused.
func TestAClaimInDoubtThatFindsThatTheSinkWentBackSaysSo(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		want := r.append(0, 0, 10)
		var backup memsink.Snapshot
		restored := false
		p := r.start("a", each(record), options{MaxBatch: 5}, memsink.Hooks{Commit: func(_ context.Context, as []epoch.Advance, do func() error) error {
			if as[0].From == 0 {
				defer func() { backup = r.sink.Snapshot() }()
			}
			if as[0].From == 10 && !restored {
				restored = true
				r.sink.Restore(backup)
				return fmt.Errorf("the connection is lost: %w", epoch.ErrInDoubt)
			}
			return do()
		}})
		synctest.Wait()
		want = append(want, r.append(0, 10, 12)...)
		r.pass(time.Second)
		back := wantOne[consumer.WentBack](p)
		if back.Was.Next != 10 || back.Now.Next != 5 {
			t.Errorf("the sink went back from %d to %d", back.Was.Next, back.Now.Next)
		}
		r.wantEffects(0, want...)
		p.end()
	})
}

// R6 for those who have nothing to commit.
func TestAQuietPartitionThatWasClaimedElsewhereIsNoticed(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		r.group().Script()
		r.group().SetGeneration(4)
		a := r.start("a", each(record), options{})
		b := r.start("b", each(record), options{})
		synctest.Wait()
		r.group().Grant(a.member, r.log.Name(), 0)
		synctest.Wait()
		r.group().Grant(b.member, r.log.Name(), 0) // and a is not told
		r.pass(2 * memsource.DefaultTerm)
		wantOne[consumer.Stale](a)
		if n := len(seen[consumer.Stale](b)) + len(seen[consumer.WentBack](a)) + len(seen[consumer.WentBack](b)); n > 0 {
			t.Errorf("%d other events", n)
		}
		a.end()
		b.end()
	})
}

// An operator sets the fence by hand, under our claim.
func TestAQuietPartitionFollowsAPositionThatWasSetByHand(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		want := r.append(0, 0, 10)
		p := r.start("a", each(record), options{})
		synctest.Wait()
		f := r.sink.Fences()[r.partition(0)]
		err := r.sink.Commit(r.Context(), []epoch.Advance{{Partition: f.Partition, Claim: f.Claim, From: 10, To: 20}}, epoch.TxOptions{},
			func(context.Context, tx) error { return nil })
		if err != nil {
			t.Fatal(err)
		}
		r.append(0, 10, 15) // below it
		r.pass(2 * memsource.DefaultTerm)
		want = append(want, r.append(0, 15, 30)[5:]...)
		r.pass(2 * time.Minute) // a halt is tried again once a minute at least
		r.wantEffects(0, want...)
		p.end()
	})
}

// 1,500 idle partitions, and one that is not.
func TestLooksAtQuietPartitionsAreFewAndLeaveOutTheBusyOnes(t *testing.T) {
	const partitions = 1500
	inBubble(t, partitions, func(r *rig) {
		var reads, looks, busy atomic.Int64
		p := r.start("a", each(record), options{}, memsink.Hooks{
			Fence: func(_ context.Context, _ epoch.Partition, do func() error) error {
				reads.Add(1)
				return do()
			},
			Look: func(_ context.Context, ps []epoch.Partition, do func() error) error {
				looks.Add(1)
				if slices.Contains(ps, r.partition(7)) {
					busy.Add(1)
				}
				return do()
			},
		})
		synctest.Wait()
		claimed := reads.Load()
		const terms = 10
		for range terms * memsource.DefaultTerm / time.Second {
			r.log.Append(7, "v")
			r.pass(time.Second)
		}
		p.end()
		if n := reads.Load() - claimed; n > 0 {
			t.Errorf("%d fences were read one by one", n)
		}
		if n, rounds := looks.Load(), int64(3*terms); n < rounds || n > 2*rounds+2 {
			t.Errorf("%d looks in %d terms; want two a round, and a round for each third to two thirds of a term", n, terms)
		}
		if n := busy.Load(); n > 0 {
			t.Errorf("the partition that commits was looked at %d times", n)
		}
	})
}

// A look that is under way while the partition commits sees another position
// than the one that is known, and has nothing to say.
func TestALookBesideATransactionDecidesNothing(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		looking, goOn := make(chan struct{}), make(chan struct{})
		var once atomic.Bool
		p := r.start("a", each(record), options{}, memsink.Hooks{
			Look: func(_ context.Context, _ []epoch.Partition, do func() error) error {
				if once.Swap(true) {
					return do()
				}
				close(looking)
				<-goOn
				err := do() // it sees the second message's commit
				r.log.Append(0, "c")
				synctest.Wait()
				return err
			},
		})
		r.log.Append(0, "a")
		<-looking
		r.log.Append(0, "b")
		synctest.Wait()
		close(goOn)
		r.pass(time.Hour)
		p.end()
		r.wantEffects(0, "a", "b", "c")
		if n := len(seen[consumer.Claimed](p)); n != 1 {
			t.Errorf("%d claims, want one", n)
		}
	})
}

// A look that takes long has read the fence as it was before the claim that came meanwhile.
func TestALookFromBeforeAClaimDoesNotSayThatTheSinkWentBack(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		r.fill(0, 3)
		looking := make(chan struct{})
		var looks, doubts atomic.Int32
		p := r.start("a", each(record).Background(func(ctx context.Context, b background) {
			select {
			case <-looking:
				_ = b.Do(ctx, note("x"))
			case <-ctx.Done():
			}
			<-ctx.Done()
		}), options{}, memsink.Hooks{
			Look: func(_ context.Context, _ []epoch.Partition, do func() error) error {
				err := do()
				if looks.Add(1) == 1 {
					close(looking)
					r.pass(memsource.DefaultTerm / 2)
				}
				return err
			},
			CommitHeld: func(_ context.Context, _ epoch.Hold, do func() error) error {
				if doubts.Add(1) == 1 {
					return epoch.ErrInDoubt
				}
				return do()
			},
		})
		r.pass(5 * memsource.DefaultTerm)
		p.end()
		if back := seen[consumer.WentBack](p); len(back) > 0 {
			t.Errorf("the sink is said to have gone back: %+v", back)
		}
		if n := len(seen[consumer.Claimed](p)); n != 2 || looks.Load() < 2 {
			t.Errorf("%d claims and %d looks; want a claim after the doubt, and looks after that", n, looks.Load())
		}
	})
}
