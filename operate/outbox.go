package operate

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/epochfence/epochfence/epoch"
)

// Outbox operates the entries of an outbox that no receiver has answered yet.
// pgoutbox.OpenOperator and sqloutbox.OpenOperator return one. Methods are safe for concurrent
// use.
type Outbox interface {
	// Entries lists entries in the order of their IDs, without what may be secret:
	// of their URLs the scheme and the host, and no headers and bodies.
	Entries(ctx context.Context, q OutboxQuery) ([]OutboxEntry, error)

	// Entry is one of them, whole, or [ErrNoOutboxEntry].
	Entry(ctx context.Context, id int64) (OutboxEntry, error)

	// DoOutbox does a to an entry, in one transaction with its record.
	DoOutbox(ctx context.Context, a OutboxAct) error

	// OutboxHistory reads what operators did to entries, newest first, at most limit;
	// zero means DefaultLimit.
	OutboxHistory(ctx context.Context, limit int) ([]OutboxRecord, error)
}

// OutboxEntry is a request that waits to be sent.
type OutboxEntry struct {
	ID             int64
	Partition      epoch.Partition
	Key            string // entries of a partition with the same Key are sent in order; empty: no order
	Scope          string
	IdempotencyKey string
	Method, URL    string
	Header         http.Header
	Body           []byte
	AddedAt        time.Time // by the database; zero if it does not say
	RetryRequested bool      // and not seen by the relay yet
}

// OutboxQuery selects entries. The zero query selects the oldest.
type OutboxQuery struct {
	Filter
	Number *int32 // of the partition; nil: any
	Key    *string
	After  int64 // those with a higher ID only
	Limit  int   // zero: DefaultLimit
}

// OutboxKind is the kind of an operator action on an entry.
type OutboxKind string

const (
	// OutboxRetry has the relay send an entry within seconds that waits to be tried
	// again. One that waits for another entry of its Key continues waiting.
	OutboxRetry OutboxKind = "retry"

	// OutboxDiscard deletes an entry. It is not sent any more; an attempt that is under
	// way may arrive.
	OutboxDiscard OutboxKind = "discard"
)

// OutboxAct is an operator action on an entry.
type OutboxAct struct {
	Kind OutboxKind
	Seen OutboxEntry // its ID, partition and idempotency key are compared

	// By is who does it, and Reason why, as in [Act].
	By, Reason string
}

// Check returns an error that matches [ErrAct] if no entry could take the act.
func (a OutboxAct) Check() error {
	switch a.Kind {
	case OutboxRetry, OutboxDiscard:
		return CheckWho(a.By, a.Reason, "")
	default:
		return fmt.Errorf("%w: %q; want %s or %s", ErrAct, a.Kind, OutboxRetry, OutboxDiscard)
	}
}

// OutboxRecord records an operator action on an entry.
type OutboxRecord struct {
	At                    time.Time // by the database
	Role                  string    // the database's name for who was connected
	Kind                  OutboxKind
	Entry                 int64
	Partition             epoch.Partition
	Scope, IdempotencyKey string
	By, Reason            string
}

// ErrNoOutboxEntry is returned if there is no such entry: it was delivered or discarded, or never
// existed.
var ErrNoOutboxEntry = errors.New("no such entry in the outbox")
