package docs_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/memsource"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/suites/bubble"
	"github.com/epochfence/epochfence/operate"
	"github.com/epochfence/epochfence/sinks/memsink"
)

var (
	errAccountLocked = errors.New("the account is locked")
	errBankDown      = errors.New("the bank is down")
)

func debit(limit func(customer string) (int, error)) consumer.Handler[*memsink.Tx] {
	return func(_ context.Context, tx *memsink.Tx, m consumer.Message, _ epoch.Epoch) error {
		limit, err := limit(string(m.Value))
		switch {
		case errors.Is(err, errAccountLocked): // the others do not wait
			return consumer.RetryAfter(err, 15*time.Minute)
		case errors.Is(err, errBankDown):
			return fmt.Errorf("%w: %w", epoch.ErrUnhealthy, err)
		}
		tx.Append("debited", fmt.Sprint(limit))
		return err
	}
}

// TestThePageSaysWhatWaits: one message does, or the partition, and nothing is a dead letter.
func TestThePageSaysWhatWaits(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var down, locked atomic.Bool
		down.Store(true)
		locked.Store(true)
		log, sink := memsource.New("charges", 1), memsink.New()
		log.Append(0, "anna", "bert", "carl")
		h := consumer.Each(debit(func(customer string) (int, error) {
			if down.Load() {
				return 0, errBankDown
			}
			if customer == "bert" && locked.Load() {
				return 0, errAccountLocked
			}
			return 100, nil
		}))
		ctx, stop := context.WithCancel(t.Context())
		over := make(chan error)
		go func() {
			over <- consumer.Run(ctx, log.Group(memsource.DefaultGroup).Member("a"), sink, h, consumer.Options{})
		}()
		debited := func(after time.Duration, want int) {
			t.Helper()
			<-time.After(after)
			if got := sink.List("debited"); len(got) != want {
				t.Errorf("debited are %q, want %d", got, want)
			}
		}
		debited(10*time.Minute, 0)
		down.Store(false)
		debited(2*time.Minute, 2)
		ls, err := sink.Operator().DeadLetters(ctx, operate.DeadLetterQuery{Deferred: true})
		if err != nil || len(ls) != 1 || ls[0].Message.Offset != 1 || len(sink.DeadLetters()) != 0 {
			t.Errorf("deferred are %+v, dead letters %+v, %v", ls, sink.DeadLetters(), err)
		}
		locked.Store(false)
		debited(15*time.Minute, 3)
		stop()
		if err := <-over; err != nil {
			t.Error(err)
		}
	})
}
