// Package batches relays entries of an outbox in batches to a server that commits a batch and its
// position together: see [outbox/kafkaoutbox] and [outbox/natsoutbox], which have the [Session].
package batches

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/text/troubles"
	"github.com/epochfence/epochfence/outbox"
)

// This file has what the relay asks of a server, and what its texts call it. It decides nothing.

// Target is what entries are sent to.
type Target struct {
	Package     string // begins errors
	Server      string // "Kafka"
	Destination string // "topic"
	Record      string // "record"

	Prefix    string // begins the URLs and Keys of the entries
	Method    string // of the entries
	Positions string // the destination of positions, for operators

	// Open returns a session of a partition. If the server has no position, and mayBegin, it writes one.
	Open func(ctx context.Context, p epoch.Partition, mayBegin bool) (Session, error)

	// Forget says how an operator deletes the position.
	Forget func(epoch.Partition) string

	// Partial says that the server may end a transaction in a part of its destinations: its sessions are a
	// [Completer], and the database keeps the destinations of a batch.
	Partial bool

	// Refusal says whether an error of one entry is that entry's fault.
	Refusal func(error) Refusal

	Limits
}

// Session sends batches of one partition. When it is open, nothing that an earlier session has begun can
// commit any more, and the position is known. After an error, it is only closed.
type Session interface {
	At() Position

	// Write commits a position without entries.
	Write(ctx context.Context, at Position) error

	// Send commits a batch and its position. If it fails, errs may have an error for each row.
	Send(ctx context.Context, at Position, rows []outbox.Row) (errs []error, err error)

	Close()
}

// Completer is a [Session] that may find that the server has ended the last transaction in a part of its
// destinations. It has no position then.
type Completer interface {
	Incomplete() bool

	// Completion returns what the database must have before Complete is called, because Complete may be
	// interrupted. before is what it has of an earlier one. The error is [ErrDoubt] if it cannot be known how
	// that transaction was decided.
	Completion(before string) (string, error)

	// Complete ends that transaction in the destinations and in the position, as it was decided.
	Complete(ctx context.Context, destinations []string) error

	// Torn reports whether the completion that the database has may have been aborted in a part of the
	// destinations, although the transaction was committed in others.
	Torn(begun string) bool
}

// Refusal says whose fault an error is.
type Refusal int

// An error may be nobody's fault, that of its entry, or that of one of those with such an error.
const (
	NotRefused Refusal = iota
	Refused
	RefusedTogether
)

// Limits are options that all boxes have.
type Limits struct {
	Batch                              int
	RequestTimeout, RetryMin, RetryMax time.Duration
	Observe                            func(outbox.Event)
	ObserveBacklog                     func(outbox.Backlog)
	Logger                             *slog.Logger
}

// WithDefaults sets the defaults and checks l. A batch has most entries at most.
func (l Limits) WithDefaults(pkg string, batch, most int) (Limits, error) {
	l.Batch = cmp.Or(l.Batch, batch)
	l.RequestTimeout = cmp.Or(l.RequestTimeout, 10*time.Second)
	l.RetryMin = cmp.Or(l.RetryMin, 100*time.Millisecond)
	l.RetryMax = cmp.Or(l.RetryMax, max(30*time.Second, l.RetryMin))
	l.Logger = cmp.Or(l.Logger, slog.Default())
	if l.Observe == nil {
		l.Observe = func(outbox.Event) {}
	}
	switch {
	case l.Batch < 1 || l.Batch > most:
		return l, fmt.Errorf("%s: Options.Batch is %d; want 0 for the default of %d, or 1 to %d", pkg, l.Batch, batch, most)
	case l.RequestTimeout < time.Millisecond, l.RetryMin < 0, l.RetryMin > l.RetryMax:
		return l, fmt.Errorf("%s: Options.RequestTimeout %v, RetryMin %v, RetryMax %v; want positive ones, and RetryMin up to RetryMax",
			pkg, l.RequestTimeout, l.RetryMin, l.RetryMax)
	}
	return l, nil
}

// Relay sends the entries of a store to a target.
type Relay[TX any] struct {
	store    outbox.Store[TX]
	o        Target
	troubles *troubles.Log[epoch.Partition]
}

// New returns a relay that sends the entries of store to o.
func New[TX any](store outbox.Store[TX], o Target) (*Relay[TX], error) {
	if store == nil {
		return nil, errors.New(o.Package + ": New needs a store")
	}
	return &Relay[TX]{store: store, o: o, troubles: troubles.New[epoch.Partition](o.Logger, "partitions")}, nil
}

// Add stores an entry in tx.
func (b *Relay[TX]) Add(ctx context.Context, tx TX, m epoch.Message, e outbox.Entry) error {
	if err := b.store.Add(ctx, tx, m, e); err != nil {
		return fmt.Errorf("%s: add a %s for the message %s at offset %d: %w", b.o.Package, b.o.Record, m.Partition, m.Offset, err)
	}
	return nil
}

// keyBatch is the Key of the entry that has the assigned batch.
func (o *Target) keyBatch() string { return o.Prefix + "batch" }

// isRecord reports whether an entry is for this target. The others are requests over HTTP, those of
// another target, and the assigned batch.
func (o *Target) isRecord(row outbox.Row) bool {
	return row.Method == o.Method && strings.HasPrefix(row.URL, o.Prefix+"//")
}

func destinationsOf(rows []outbox.Row) (all []string) {
	for _, row := range rows {
		all = append(all, destinationOf(row))
	}
	slices.Sort(all)
	return slices.Compact(all)
}

func destinationOf(row outbox.Row) string {
	_, destination, _ := strings.Cut(row.URL, "//")
	return destination
}
