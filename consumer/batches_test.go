package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/memsource"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/suites/bubble"
	"github.com/epochfence/epochfence/sinks/memsink"
)

// marking is a source that says of every gap in its log that there is one: the
// batch before it ends behind it, or one without messages comes in between.
type marking struct{ consumer.Source }

func (m marking) Run(ctx context.Context, joined func(error), own func(context.Context, consumer.Tenure)) error {
	return m.Source.Run(ctx, joined, func(ctx context.Context, t consumer.Tenure) { own(ctx, markingTenure{t}) })
}

type markingTenure struct{ consumer.Tenure }

func (t markingTenure) Read(ctx context.Context, from epoch.Fence) iter.Seq2[consumer.Batch, error] {
	return func(yield func(consumer.Batch, error) bool) {
		next := from.Next
		for b, err := range t.Tenure.Read(ctx, from) {
			for _, part := range cutAtGaps(next, b) {
				if !yield(part, nil) {
					return
				}
			}
			if next = b.Next; err != nil && !yield(b, err) {
				return
			}
		}
	}
}

// cutAtGaps cuts a batch in front of every gap and behind every other one.
func cutAtGaps(next epoch.Offset, b consumer.Batch) []consumer.Batch {
	var parts []consumer.Batch
	var part consumer.Batch
	for i, m := range b.Messages {
		if m.Offset > next {
			gap := consumer.Batch{Next: m.Offset, Mark: b.Position(i + 1).Mark}
			if len(part.Messages) > 0 && m.Offset%2 == 0 {
				part.Next, part.Mark = gap.Next, gap.Mark
				parts = append(parts, part)
			} else {
				if len(part.Messages) > 0 {
					parts = append(parts, part)
				}
				parts = append(parts, gap)
			}
			part = consumer.Batch{}
		}
		to := b.Position(i + 1)
		next = m.Offset + 1
		part.Messages = append(part.Messages, m)
		part.Next, part.Mark = next, to.Mark
	}
	if len(part.Messages) > 0 || b.Next > next {
		part.Next, part.Mark = b.Next, b.Mark
		parts = append(parts, part)
	}
	return parts
}

// Gaps are in front, in between, at the end and alone, in every way
// that batches are split: failures with and without a known culprit, failures
// that pass, slow messages, refused commits, doubt.
func TestGapsAreInNobodysWayHoweverABatchIsSplit(t *testing.T) {
	seeds := uint64(bubble.Rounds(100))
	if testing.Short() {
		seeds = 20
	}
	met := map[string]int{}
	for seed := range seeds {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) { playGaps(t, seed, met) })
		})
	}
	t.Logf("met in %d seeds: %v", seeds, met)
	for _, what := range []string{"gap", "given up", "consumer.Retried", "consumer.InDoubt", "timeout"} {
		if met[what] < 5 {
			t.Errorf("hardly met %s: %v", what, met)
		}
	}
}

func playGaps(t *testing.T, seed uint64, met map[string]int) {
	const partitions, messages = 3, 40
	c := &chaos{rng: rand.New(rand.NewPCG(seed, 1))}
	r := &rig{T: t, log: memsource.New("orders", partitions), sink: memsink.New(), trace: newTracer(t)}
	var want, poisoned [partitions][]string
	for n := range int32(partitions) {
		var gaps []epoch.Offset
		density := 1 + c.roll(9)
		for at, v := range r.fill(n, messages) {
			switch {
			case c.roll(10) < density:
				gaps = append(gaps, epoch.Offset(at))
			case c.roll(8) == 0:
				poisoned[n] = append(poisoned[n], v)
			default:
				want[n] = append(want[n], v)
			}
		}
		r.log.Delete(n, gaps...)
	}
	var slow atomic.Int64
	one := func(ctx context.Context, tx tx, m consumer.Message, e epoch.Epoch) error {
		if slices.Contains(poisoned[m.Partition.Number], string(m.Value)) {
			return errPoison
		}
		switch c.roll(40) {
		case 0:
			return fmt.Errorf("%w: deadlock", epoch.ErrTransient)
		case 1:
			slow.Add(1)
			<-ctx.Done()
			return context.Cause(ctx)
		}
		return record(ctx, tx, m, e)
	}
	all := func(ctx context.Context, tx tx, ms []consumer.Message, e epoch.Epoch) error {
		for _, m := range ms {
			if err := one(ctx, tx, m, e); err != nil {
				return err
			}
		}
		return nil
	}
	settle := func(_ context.Context, tx tx, m consumer.Message, _ epoch.Epoch, cause error) error {
		var failure *consumer.HandlerError
		if !errors.As(cause, &failure) || failure.Offset != m.Offset {
			t.Errorf("given up on %+v because of %v", m, cause)
		}
		tx.Append("dead of "+list(m.Partition.Number), string(m.Value))
		return nil
	}
	o := options{
		MaxBatch: 1 + c.roll(36), Committers: 1 + c.roll(2), BatchTimeout: 2 * time.Second, MaxAttempts: 30,
	}
	p := r.process("a", nil)
	p.sink.Script(memsink.Hooks{Commit: func(_ context.Context, _ []epoch.Advance, do func() error) error {
		switch c.roll(30) {
		case 0:
			return errors.Join(do(), epoch.ErrInDoubt)
		case 1:
			return errors.New("refused")
		case 2:
			return fmt.Errorf("%w: serialization", epoch.ErrTransient)
		}
		return do()
	}})
	p.run(func(ctx context.Context) error {
		switch seed % 3 {
		case 0:
			return consumer.Run(ctx, marking{p.member}, p.sink, consumer.Each(one).OnFailure(settle), p.watched(o))
		case 1:
			return consumer.Run(ctx, marking{p.member}, p.sink, consumer.EachTransaction(func(ctx context.Context, tx tx, ms []consumer.Message) error {
				return all(ctx, tx, ms, ms[0].Under.Epoch)
			}).OnFailure(settle), p.watched(o))
		}
		return consumer.Run(ctx, marking{p.member}, p.sink, consumer.Batches(all).OnFailure(settle), p.watched(o))
	})
	select {
	case <-r.group().UntilApplied(t.Context()).Done():
	case <-time.After(24 * time.Hour):
	}
	r.pass(time.Minute)
	p.end()
	met["timeout"] += int(slow.Load())
	applied, failed := map[int32]int{}, map[int32]int{}
	for _, e := range p.events {
		met[fmt.Sprintf("%T", e)]++
		if a, ok := e.(consumer.Advanced); ok {
			applied[a.Partition.Number] += a.Messages
			failed[a.Partition.Number] += a.Failed
			if int(a.To-a.From) > a.Messages {
				met["gap"]++
			}
			if a.Messages == 0 && a.Failed+a.Bytes > 0 {
				t.Errorf("nothing of something: %+v", a)
			}
		}
	}
	doubts := len(seen[consumer.InDoubt](p)) // a transaction that landed unseen is not reported
	for n := range int32(partitions) {
		met["given up"] += len(poisoned[n])
		r.wantEffects(n, want[n]...)
		if got := r.sink.List("dead of " + list(n)); !slices.Equal(got, poisoned[n]) {
			t.Errorf("given up on %v, want %v", got, poisoned[n])
		}
		r.wantNext(n, messages)
		if there := len(want[n]) + len(poisoned[n]); applied[n] > there || doubts == 0 && (applied[n] != there || failed[n] != len(poisoned[n])) {
			t.Errorf("partition %d: %d applied and %d given up of %d and %d", n, applied[n], failed[n], there, len(poisoned[n]))
		}
	}
}

// What is known of a message goes with it when it is taken out of the log.
func TestAMessageGivenUpOnIsNotMistakenForAnotherAfterItWasDeleted(t *testing.T) {
	for name, gone := range map[string][]epoch.Offset{"the next one follows": {0}, "nothing follows": {0, 1}} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, 1, func(r *rig) {
				values := r.fill(0, 2)
				var given atomic.Int32
				p := r.start("a", each(failOn(consumer.Permanent(errPoison), values[0])).OnFailure(func(_ context.Context, tx tx, m consumer.Message, _ epoch.Epoch, _ error) error {
					given.Add(1)
					if m.Offset != 0 {
						t.Errorf("given up on %+v", m)
					}
					return nil
				}), options{}, memsink.Hooks{Commit: func(_ context.Context, _ []epoch.Advance, do func() error) error {
					if given.Load() == 1 {
						given.Add(1)
						r.log.Delete(0, gone...)
						return epoch.ErrInDoubt
					}
					return do()
				}})
				r.pass(time.Hour)
				p.end()
				r.wantEffects(0, values[len(gone):]...)
				r.wantNext(0, 2)
			})
		})
	}
}

func TestTheAttemptsOfAMessageThatWasDeletedAreNotAnothers(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		values := r.fill(0, 2)
		var mu sync.Mutex
		tries := map[string]int{}
		doubtful := false
		p := r.start("a", each(func(ctx context.Context, tx tx, m consumer.Message, e epoch.Epoch) error {
			mu.Lock()
			defer mu.Unlock()
			tries[string(m.Value)]++
			if tries[values[0]] == 5 && !doubtful {
				doubtful = true
				return nil
			}
			return errPoison
		}).OnFailure(r.sink.DeadLetter), options{MaxBatch: 1, MaxAttempts: 5}, memsink.Hooks{
			Commit: func(_ context.Context, as []epoch.Advance, do func() error) error {
				if as[0].From == 0 && len(r.sink.DeadLetters()) == 0 {
					mu.Lock()
					defer mu.Unlock()
					if tries[values[1]] == 0 {
						r.log.Delete(0, 0)
						return epoch.ErrInDoubt
					}
				}
				return do()
			},
		})
		r.pass(time.Hour)
		p.end()
		if tries[values[1]] != 5+1 && tries[values[1]] != 5 {
			t.Errorf("tries: %v", tries)
		}
		if d := r.sink.DeadLetters(); len(d) != 1 || d[0].Message.Offset != 1 {
			t.Errorf("dead letters: %v", d)
		}
	})
}

func TestARefusalThatPassesCostsABatchWithoutMessagesNoClaim(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		r.fill(0, 3)
		r.log.Delete(0, 0, 1, 2)
		refusals := 0
		p := r.start("a", each(record), options{}, memsink.Hooks{Commit: func(_ context.Context, _ []epoch.Advance, do func() error) error {
			if refusals++; refusals < 5 {
				return fmt.Errorf("%w: deadlock", epoch.ErrTransient)
			}
			return do()
		}})
		r.pass(time.Hour)
		p.end()
		r.wantNext(0, 3)
		wantOne[consumer.Claimed](p)
	})
}
