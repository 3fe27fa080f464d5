package consumer_test

import (
	"context"
	"errors"
	"iter"
	"testing"
	"testing/synctest"
	"time"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/sinks/memsink"
)

// Package schedule takes the time of its jobs from this, and knows from it which step was the last.
func TestATenureIsAskedForTheNextBatchOnceTheLastOneWasApplied(t *testing.T) {
	slow := func(_ context.Context, _ []epoch.Advance, do func() error) error {
		<-time.After(time.Second)
		return do()
	}
	calls := 0
	for name, c := range map[string]struct {
		commit memsink.Hook[[]epoch.Advance]
		apply  handler
		o      options
	}{
		"one transaction":      {slow, record, options{}},
		"several transactions": {slow, record, options{MaxBatch: 2}},
		"a message that fails at first": {slow, func(ctx context.Context, tx tx, m consumer.Message, e epoch.Epoch) error {
			if calls++; calls%3 == 1 {
				return errors.New("not yet")
			}
			return record(ctx, tx, m, e)
		}, options{}},
		"a commit that fails at first": {func(ctx context.Context, as []epoch.Advance, do func() error) error {
			if calls++; calls%3 == 1 {
				return epoch.ErrTransient
			}
			return slow(ctx, as, do)
		}, record, options{}},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, 1, func(r *rig) {
				calls = 0
				asked := 0
				p := r.process("a", []memsink.Hooks{{Commit: c.commit}})
				s := reading{p.member, func(t consumer.Tenure, ctx context.Context, from epoch.Fence) iter.Seq2[consumer.Batch, error] {
					return func(yield func(consumer.Batch, error) bool) {
						for b, err := range t.Read(ctx, from) {
							if !yield(b, err) {
								return
							}
							asked++
							f, err := epoch.FenceOf(r.Context(), r.sink, t.Origin().Partition)
							if err != nil || f.Next != b.Next {
								r.Errorf("the next batch is asked for at position %d, and the last one ends at %d: %v", f.Next, b.Next, err)
							}
						}
					}
				}}
				p.run(func(ctx context.Context) error {
					return consumer.Run(ctx, s, p.sink, each(c.apply), p.watched(c.o))
				})
				var all []string
				for range 3 {
					synctest.Wait()
					all = append(all, r.fill(0, 5)...)
					r.applied()
				}
				p.end()
				r.wantEffects(0, all...)
				if asked < 3 {
					r.Errorf("a further batch was asked for %d times", asked)
				}
			})
		})
	}
}
