package consumer_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/sinks/memsink"
)

type traceKey struct{}

// trace is what a client's hook puts on a message, in a context that is long over.
func trace(id string) context.Context {
	ctx, cancel := context.WithCancel(context.WithValue(context.Background(), traceKey{}, id))
	cancel()
	return ctx
}

func TestAMessagesContextGivesItsValuesAndNotItsEnd(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		r.log.AppendMessages(0, consumer.Message{Value: []byte("first"), Context: trace("a")},
			consumer.Message{Value: []byte("second"), Context: trace("b")},
			consumer.Message{Value: []byte("third")},
			consumer.Message{Value: []byte("poison"), Context: trace("d")})
		var transactions []string
		id := func(ctx context.Context) string {
			if err := ctx.Err(); err != nil {
				t.Errorf("the context has ended: %v", err)
			}
			s, _ := ctx.Value(traceKey{}).(string)
			return s
		}
		sink := traced{r.sink.Open(), func(ctx context.Context) { transactions = append(transactions, id(ctx)) }}
		p := r.process("a", nil)
		p.run(func(ctx context.Context) error {
			return consumer.Run[tx](ctx, p.member, sink, each(func(ctx context.Context, tx tx, m consumer.Message, e epoch.Epoch) error {
				if string(m.Value) == "poison" {
					return consumer.Permanent(errors.New("poison"))
				}
				tx.Append("values", string(m.Value)+" "+id(ctx))
				return nil
			}).OnFailure(func(ctx context.Context, tx tx, _ consumer.Message, _ epoch.Epoch, _ error) error {
				tx.Append("values", "failed "+id(ctx))
				return nil
			}), p.watched(options{}))
		})
		<-r.group().UntilApplied(r.Context()).Done()
		p.end()
		// A message without a context has what the transaction has: the first one's.
		if got, want := r.sink.List("values"), []string{"first a", "second b", "third a", "failed d"}; !slices.Equal(got, want) {
			t.Errorf("values %q, want %q", got, want)
		}
		if transactions[0] != "a" || transactions[len(transactions)-1] != "d" {
			t.Errorf("the transactions are in the traces %q, want the first message's in each", transactions)
		}
	})
}

func TestAHandlerIsToldWhyItsTransactionEndsAndNotItsMessage(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		r.log.AppendMessages(0, consumer.Message{Value: []byte("slow"), Context: trace("a")})
		var cause error
		p := r.start("a", each(func(ctx context.Context, _ tx, _ consumer.Message, _ epoch.Epoch) error {
			if cause == nil {
				<-ctx.Done()
				cause = context.Cause(ctx)
			}
			return ctx.Err()
		}), options{BatchTimeout: time.Second})
		<-r.group().UntilApplied(r.Context()).Done()
		p.end()
		if !strings.Contains(cause.Error(), "BatchTimeout") {
			t.Errorf("the cause is %v, want the timeout of the transaction", cause)
		}
	})
}

// traced looks at the contexts of transactions.
type traced struct {
	*memsink.Sink
	look func(ctx context.Context)
}

func (s traced) Commit(ctx context.Context, as []epoch.Advance, calls ...func(context.Context, tx) error) error {
	s.look(ctx)
	return s.Sink.Commit(ctx, as, calls...)
}
