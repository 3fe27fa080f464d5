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
		r.applied()
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

// The transaction is in the trace of its first message, and each batch in that of its own.
func TestABatchHasTheValuesOfItsOwnFirstMessage(t *testing.T) {
	inBubble(t, 3, func(r *rig) {
		r.log.AppendMessages(2, consumer.Message{Value: []byte("first"), Context: trace("first")})
		transactions := 0
		sink := traced{r.sink.Open(), func(context.Context) { transactions++ }}
		p := r.process("a", nil)
		p.run(func(ctx context.Context) error {
			return consumer.Run[tx](ctx, p.member, sink, consumer.Batches(func(ctx context.Context, tx tx, ms []consumer.Message, _ epoch.Epoch) error {
				first := string(ms[0].Value)
				if got := ctx.Value(traceKey{}); got != first {
					t.Errorf("a batch that begins with %s has the values of %v", first, got)
				}
				if tx.Append("values", first); first == "first" { // the next transaction has both of these
					for n, id := range []string{"a", "b"} {
						r.log.AppendMessages(int32(n), consumer.Message{Value: []byte(id), Context: trace(id)}, consumer.Message{Value: []byte("more"), Context: trace("c")})
					}
					r.pass(time.Second)
				}
				return nil
			}), p.watched(options{}))
		})
		r.pass(time.Minute)
		p.end()
		if n := len(r.sink.List("values")); n != 3 || transactions != 2 {
			t.Errorf("%d batches in %d transactions, want 3 in 2", n, transactions)
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
		r.applied()
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

func (s traced) Commit(ctx context.Context, as []epoch.Advance, o epoch.TxOptions, calls ...func(context.Context, tx) error) error {
	s.look(ctx)
	return s.Sink.Commit(ctx, as, o, calls...)
}
