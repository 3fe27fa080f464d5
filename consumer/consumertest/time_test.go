package consumertest_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/consumertest"
	"github.com/epochfence/epochfence/epoch"
)

func TestAHundredMessagesOfThreePartitionsAreJudged(t *testing.T) {
	ms := make([]consumer.Message, 100)
	for i := range ms {
		ms[i] = consumer.Message{Value: []byte([]string{"chair", "table"}[i%2]), Partition: epoch.Partition{Number: int32(i % 3)}}
	}
	h := handlers{each: func(ctx context.Context, tx db, m consumer.Message, _ epoch.Epoch) error {
		if err := take(ctx, tx, m); err != nil {
			return err
		}
		return sell(ctx, tx, m, fmt.Sprint(m.Offset))
	}, failed: func(ctx context.Context, tx db, m consumer.Message) error { return sell(ctx, tx, m, "failed") }}
	for name, open := range map[string]func(testing.TB) database{"sqlite": newSQLite, "postgres": newPostgres} {
		t.Run(name, func(t *testing.T) {
			d := open(t)
			began := time.Now()
			d.check(t, h, ms, consumertest.Options{})
			t.Logf("100 messages took %v", time.Since(began))
		})
	}
}
