package operate

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/epochfence/epochfence/epoch"
)

// This file has the interface that stores of an outbox implement for operators. Package outbox
// decides when an entry is sent.

// Outbox operates the entries of an outbox: those that wait for an answer, those that the receiver
// has refused, and those whose answer OnAnswer or OnRefused could not handle.
// pgoutbox.OpenOperator, sqloutbox.OpenOperator and cassink.Sink.Operator return one. Methods are
// safe for concurrent use.
type Outbox interface {
	// Entries returns entries by ID, without the parts that may be secret: headers, bodies, and
	// everything in the URLs after the host.
	Entries(ctx context.Context, q OutboxQuery) ([]OutboxEntry, error)

	// Entry returns one entry with all parts, or [ErrNoOutboxEntry].
	Entry(ctx context.Context, id int64) (OutboxEntry, error)

	// DoOutbox carries out a and records it, in one transaction if the store has transactions. Otherwise
	// the record comes first, so that nothing is done without one.
	DoOutbox(ctx context.Context, a OutboxAct) error

	// OutboxHistory returns the records of operator actions, newest first, at most limit. Zero
	// means DefaultLimit.
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
	RetryRequested bool      // the relay has not seen the request yet
}

// OutboxQuery selects entries. The zero query selects the oldest.
type OutboxQuery struct {
	Filter
	Number *int32 // of the partition; nil: any
	Key    *string
	After  int64 // only entries with a higher ID
	Limit  int   // zero: DefaultLimit
}

// OutboxKind is the kind of an operator action on an entry.
type OutboxKind string

const (
	// OutboxRetry makes the relay send an entry within seconds instead of waiting for the next try.
	// An entry that waits for another entry of its Key keeps waiting, and so does one of a scope whose
	// epoch the receiver has refused as stale.
	OutboxRetry OutboxKind = "retry"

	// OutboxDiscard deletes an entry. The relay does not send it again. An attempt that is already
	// running may still arrive.
	OutboxDiscard OutboxKind = "discard"
)

// OutboxAct is an operator action on an entry.
type OutboxAct struct {
	Kind OutboxKind
	Seen OutboxEntry // its ID, partition and idempotency key are compared

	By, Reason string // as in Act
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
	At                    time.Time // by the clock of the database
	Role                  string    // the database user that was connected
	Kind                  OutboxKind
	Entry                 int64
	Partition             epoch.Partition
	Scope, IdempotencyKey string
	By, Reason            string
}

// ErrNoOutboxEntry is returned if there is no such entry: it was delivered, discarded, or refused
// by the receiver and handled by OnRefused, or it never existed.
var ErrNoOutboxEntry = errors.New("no such entry in the outbox")
