package outbox_test

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/memsource"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/suites/bubble"
	"github.com/epochfence/epochfence/outbox"
	"github.com/epochfence/epochfence/sinks/memsink"
)

// An entry that can never be sent is not tried again while its partition waits.
func TestAnEntryThatCanNeverBeSentIsAPermanentFailureOfItsMessage(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		box, err := outbox.New(struct{ outbox.Store[*memsink.Tx] }{}, outbox.Options[*memsink.Tx]{})
		if err != nil {
			t.Fatal(err)
		}
		log := memsource.New("orders", 1)
		log.Send("", "x")
		ctx, stop := context.WithCancel(t.Context())
		tries := 0
		var failed error
		ended := make(chan error, 1)
		go func() {
			ended <- consumer.Run(ctx, log.Group("billing").Member("a"), memsink.New(), consumer.Each(func(ctx context.Context, tx *memsink.Tx, m consumer.Message, _ epoch.Epoch) error {
				tries++
				return box.Add(ctx, tx, m, outbox.Entry{Scope: "s", URL: "nowhere"})
			}).OnFailure(func(_ context.Context, _ *memsink.Tx, _ consumer.Message, _ epoch.Epoch, err error) error {
				failed = err
				return nil
			}), consumer.Options{
				Logger: slog.New(slog.DiscardHandler),
			})
		}()
		<-time.After(time.Minute)
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if tries != 1 || !errors.Is(failed, outbox.ErrEntry) {
			t.Errorf("after %d tries OnFailure got %v, want ErrEntry after one", tries, failed)
		}
	})
}
