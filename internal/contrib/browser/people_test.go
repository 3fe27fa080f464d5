package browser

import (
	"context"
	"net/http"
	"time"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/operate"
)

func anna(*http.Request) (by string, ok bool) { return "anna", true }

// waiting is an operator with an entry in the outbox.
type waiting struct{ operate.Operator }

func (waiting) entry() operate.OutboxEntry {
	return operate.OutboxEntry{
		ID: 41, Partition: epoch.Partition{Group: "billing", Topic: "orders"}, Key: "customer 7", IdempotencyKey: "billing/orders/0/17",
		Method: http.MethodPost, URL: "https://payments.example", AddedAt: time.Now().Add(-3 * time.Minute),
	}
}

func (o waiting) OutboxEntries(context.Context, operate.OutboxQuery) ([]operate.OutboxEntry, error) {
	return []operate.OutboxEntry{o.entry()}, nil
}

func (o waiting) OutboxEntry(_ context.Context, id int64) (operate.OutboxEntry, error) {
	if e := o.entry(); e.ID == id {
		return e, nil
	}
	return operate.OutboxEntry{}, operate.ErrNoOutboxEntry
}

func (waiting) DoOutbox(context.Context, operate.OutboxAct) error { return nil }
