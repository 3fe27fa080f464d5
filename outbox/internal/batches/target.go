// Package batches relays entries of an outbox in batches to a server that commits a batch and its
// position together: see [outbox/kafkaoutbox] and [outbox/natsoutbox], which have the [Session].
package batches

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/text/troubles"
	"github.com/epochfence/epochfence/outbox"
)

// This file has what the relay asks of a server, what its texts call it, and how a record is an entry of an
// outbox, so that the stores and the operators' list need to know nothing of servers.

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

// MethodBatch is the Method of an entry that has a batch or a position.
const MethodBatch = "BATCH"

const maxKey = 255

// Record is a record for a topic, or a message for a subject.
type Record struct {
	Destination string
	Key, Value  []byte // nil and empty differ
	Headers     []epoch.Header
}

// Size returns the bytes of the record, with the lengths of its headers.
func (r Record) Size() int {
	size := len(r.Key) + len(r.Value)
	for _, field := range r.Headers {
		size += len(field.Key) + len(field.Value) + 10
	}
	return size
}

// Entry returns r as an entry that order orders, which may be nil.
func (o *Target) Entry(r Record, order []byte) outbox.Entry {
	h := http.Header{}
	if r.Key != nil {
		h["Key"] = []string{url.QueryEscape(string(r.Key))}
	}
	if r.Value == nil {
		h["Value"] = []string{"null"}
	}
	for _, field := range r.Headers {
		text := url.QueryEscape(field.Key)
		if field.Value != nil {
			text += "=" + url.QueryEscape(string(field.Value))
		}
		h["Header"] = append(h["Header"], text)
	}
	return outbox.Entry{
		Key: o.orderKey(order), IdempotencyKey: rand.Text(), Method: o.Method, URL: o.Prefix + "//" + r.Destination, Header: h, Body: r.Value,
	}
}

// orderKey returns the Key of an entry: the record's key if every database can store it as text,
// otherwise its hash.
func (o *Target) orderKey(key []byte) string {
	readable, hashed := o.Prefix+"=", o.Prefix+"#"
	switch {
	case key == nil:
		return ""
	case len(readable)+len(key) <= maxKey && utf8.Valid(key) && !strings.Contains(string(key), "\x00"):
		return readable + string(key)
	}
	sum := sha256.Sum256(key)
	return hashed + hex.EncodeToString(sum[:])
}

// Parse returns the record of an entry.
func Parse(row outbox.Row) (Record, error) {
	r := Record{Destination: destinationOf(row), Value: row.Body}
	if r.Value == nil {
		r.Value = []byte{}
	}
	if len(row.Header["Value"]) > 0 {
		r.Value = nil
	}
	if key := row.Header["Key"]; len(key) > 0 {
		plain, err := url.QueryUnescape(key[0])
		if err != nil {
			return r, fmt.Errorf("entry %d: its key: %w", row.ID, err)
		}
		r.Key = []byte(plain)
	}
	for _, text := range row.Header["Header"] {
		name, value, some := strings.Cut(text, "=")
		name, err := url.QueryUnescape(name)
		if err != nil {
			return r, fmt.Errorf("entry %d: a header: %w", row.ID, err)
		}
		field := epoch.Header{Key: name}
		if some {
			plain, err := url.QueryUnescape(value)
			if err != nil {
				return r, fmt.Errorf("entry %d: header %s: %w", row.ID, name, err)
			}
			field.Value = []byte(plain)
		}
		r.Headers = append(r.Headers, field)
	}
	return r, nil
}
