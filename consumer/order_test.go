package consumer_test

import (
	"context"
	"errors"
	"iter"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
)

// forgetful is a source that delivers every message a second time, 3 messages
// later, as a consumer does whose position was reset behind its back.
type forgetful struct{ consumer.Source }

func (s forgetful) Run(ctx context.Context, joined func(error), own func(context.Context, consumer.Tenure)) error {
	return s.Source.Run(ctx, joined, func(ctx context.Context, t consumer.Tenure) { own(ctx, forgetfulTenure{t}) })
}

type forgetfulTenure struct{ consumer.Tenure }

func (t forgetfulTenure) Read(ctx context.Context, from epoch.Fence) iter.Seq2[consumer.Batch, error] {
	return func(yield func(consumer.Batch, error) bool) {
		var before consumer.Batch
		for b, err := range t.Tenure.Read(ctx, from) {
			if !yield(b, err) || err != nil {
				return
			}
			before.Messages, before.Next, before.Mark = append(before.Messages, b.Messages...), b.Next, b.Mark
			if len(before.Messages) >= 3 && !yield(before, nil) {
				return
			}
		}
	}
}

// R10: an offset below the position that comes again is not applied again, and
// not passed over either.
func TestR10AnOffsetBelowThePositionThatComesAgainHalts(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		want := r.fill(0, 3)
		p := r.process("a", nil)
		p.run(func(ctx context.Context) error {
			return consumer.Run(ctx, forgetful{p.member}, p.sink, consumer.Each(record), p.watched(options{}))
		})
		synctest.Wait()
		var e *consumer.PositionError
		if h := wantOne[consumer.Halted](p); !errors.As(h.Err, &e) || !errors.Is(e, consumer.ErrOutOfOrder) || e.Position != 3 || e.Found != 0 {
			t.Errorf("halted with %v", h.Err)
		} else if text := e.Error(); !strings.Contains(text, "offset 0 came") || strings.Contains(text, "rewind") {
			t.Errorf("it says: %s", text)
		}
		p.end()
		r.wantEffects(0, want...)
	})
}
