package operate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/form"
)

// This file has the operators' side of the outbox, over the rows of a sink. Package outbox decides
// when an entry is sent.

// OutboxEntry is a request that waits to be sent: one that waits for an answer, that the receiver has
// refused, or whose answer OnAnswer or OnRefused could not handle.
type OutboxEntry struct {
	ID             int64
	Partition      epoch.Partition
	Offset         epoch.Offset // of the message that added it; -1: the version of epochfence that added it did not store it
	Key            string       // entries of a partition with the same Key are sent in order; empty: no order
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
	Key    string // empty: any
	After  int64  // only entries with a higher ID
	Limit  int    // zero: DefaultLimit
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

	By, Reason, TraceID string // as in Act
}

// Check returns an error that matches [ErrAct] if no entry could take the act.
func (a OutboxAct) Check() error {
	switch a.Kind {
	case OutboxRetry, OutboxDiscard:
		return CheckWho(a.By, a.Reason, a.TraceID)
	default:
		return fmt.Errorf("%w: %q; want %s or %s", ErrAct, a.Kind, OutboxRetry, OutboxDiscard)
	}
}

// decided returns the audit log entry for a. f is the fence of the entry's partition, or zero.
func (a OutboxAct) decided(f epoch.Fence) Decision {
	kind := DecidedOutboxRetry
	if a.Kind == OutboxDiscard {
		kind = DecidedOutboxDiscard
	}
	return Decision{
		Kind: kind, Partition: a.Seen.Partition, Epoch: f.Epoch, Claim: f.Claim, Owner: f.Owner, From: f.Next, To: f.Next, By: a.By, TraceID: a.TraceID,
		Reason: a.Reason, Entry: a.Seen.ID, IdempotencyKey: a.Seen.IdempotencyKey,
	}
}

// ErrNoOutboxEntry is returned if there is no such entry: it was delivered, discarded, or refused
// by the receiver and handled by OnRefused, or it never existed.
var ErrNoOutboxEntry = errors.New("no such entry in the outbox")

type outboxBody struct {
	form.Version
	Scope  string `json:"scope,omitempty"`
	Method string `json:"method"`
}

// Row returns e as a row, with its content. See [KindOutbox].
func (e OutboxEntry) Row() Row {
	r := Row{
		Kind: KindOutbox, ID: e.ID, Name: e.IdempotencyKey, Partition: e.Partition, Offset: e.Offset, By: e.Key, Text: e.URL, At: e.AddedAt, Changed: e.AddedAt,
		Body: encode(&outboxBody{Scope: e.Scope, Method: e.Method}), Value: e.Body, Headers: encode(e.Header),
	}
	if e.RetryRequested {
		r.State = StateRequested
	}
	return r
}

// OutboxEntryOf returns the entry of a row of [KindOutbox], with as much of its content as the row has.
func OutboxEntryOf(r Row) (OutboxEntry, error) {
	var b outboxBody
	e := OutboxEntry{
		ID: r.ID, Partition: r.Partition, Offset: r.Offset, Key: r.By, IdempotencyKey: r.Name, URL: r.Text, Body: r.Value, AddedAt: r.At,
		RetryRequested: r.State == StateRequested,
	}
	err := form.Parse(r.Body, &b)
	if err == nil && len(r.Headers) > 0 {
		err = json.Unmarshal(r.Headers, &e.Header)
	}
	if err != nil {
		return e, fmt.Errorf("entry %d of the outbox: %w", r.ID, err)
	}
	e.Scope, e.Method = b.Scope, b.Method
	return e, nil
}

// OutboxEntries implements [Operator].
func (o operator) OutboxEntries(ctx context.Context, q OutboxQuery) ([]OutboxEntry, error) {
	rows := RowQuery{Kind: KindOutbox, Filter: q.Filter, Number: q.Number, By: q.Key, After: q.After, Limit: Limit(q.Limit)}
	found, err := readAs(ctx, o.admin, rows, OutboxEntryOf)
	if err != nil {
		return nil, fmt.Errorf("operate: list entries of the outbox: %w", err)
	}
	return found, nil
}

// OutboxEntry implements [Operator].
func (o operator) OutboxEntry(ctx context.Context, id int64) (OutboxEntry, error) {
	e, err := o.outboxEntry(ctx, id, nil, true)
	if err != nil {
		return OutboxEntry{}, fmt.Errorf("operate: read entry %d of the outbox: %w", id, err)
	}
	return e, nil
}

func (o operator) outboxEntry(ctx context.Context, id int64, p *epoch.Partition, content bool) (OutboxEntry, error) {
	if id <= 0 {
		return OutboxEntry{}, ErrNoOutboxEntry
	}
	found, err := o.admin.Rows(ctx, RowQuery{Kind: KindOutbox, ID: id, Partition: p, Content: content})
	if err == nil && len(found) == 0 {
		err = ErrNoOutboxEntry
	}
	if err != nil {
		return OutboxEntry{}, err
	}
	return OutboxEntryOf(found[0])
}

// DoOutbox implements [Operator].
func (o operator) DoOutbox(ctx context.Context, a OutboxAct) error {
	if err := o.doOutbox(ctx, a); err != nil {
		return fmt.Errorf("operate: %s entry %d of the outbox of %s: %w", a.Kind, a.Seen.ID, a.Seen.Partition, err)
	}
	return nil
}

func (o operator) doOutbox(ctx context.Context, a OutboxAct) error {
	if err := a.Check(); err != nil {
		return err
	}
	e, err := o.outboxEntry(ctx, a.Seen.ID, &a.Seen.Partition, false)
	if err != nil {
		return err
	}
	if e.IdempotencyKey != a.Seen.IdempotencyKey {
		return ErrNoOutboxEntry
	}
	f, err := o.fence(ctx, e.Partition)
	if err != nil {
		return err
	}
	change := Change{Row: Row{Kind: KindOutbox, ID: e.ID, Name: e.IdempotencyKey, Partition: e.Partition, State: StateRequested}}
	change.Remove = a.Kind == OutboxDiscard
	if err := o.admin.Write(ctx, EntryOf(a.decided(f)), change); errors.Is(err, ErrRowChanged) {
		return ErrNoOutboxEntry
	} else if err != nil {
		return err
	}
	return nil
}
