// Package river enqueues a River job for each message, exactly once.
package river

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/sinks/pgsink"
)

// ShipArgs is a job: ship an order.
type ShipArgs struct {
	Order string `json:"order"`
}

// Kind is River's name for these jobs.
func (ShipArgs) Kind() string { return "ship" }

// Enqueue returns a handler that enqueues a job in the fenced transaction. The job
// appears when the position moves past its message, or not at all.
func Enqueue(client *river.Client[pgx.Tx]) consumer.Handler[pgsink.Tx] {
	return func(ctx context.Context, tx pgsink.Tx, m consumer.Message, _ epoch.Epoch) error {
		_, err := client.InsertTx(ctx, pgsink.AsPgxTx(tx), ShipArgs{Order: string(m.Value)}, nil)
		if err != nil {
			return fmt.Errorf("enqueue the job: %w", err)
		}
		return nil
	}
}
