package operate

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/form"
	"github.com/epochfence/epochfence/internal/text/instant"
)

// This file has what consumer.Run asks of a sink that operators can operate: replays, hangs,
// requests and signs of life. Package consumer decides what to do with the answers.

// Records are a consumer's use of a [Ledger]. Methods are safe for concurrent use.
type Records[TX any] struct {
	ledger Ledger[TX]
	signs  atomic.Int64
}

// RecordsOf returns the records of a sink, if it, or one that it wraps, is a [Ledger].
func RecordsOf[TX any](sink epoch.Sink[TX]) (*Records[TX], bool) {
	l, ok := epoch.As[Ledger[TX]](sink)
	return RecordsIn(l), ok
}

// RecordsIn returns the records of a ledger.
func RecordsIn[TX any](l Ledger[TX]) *Records[TX] { return &Records[TX]{ledger: l} }

// Record adds ds to the audit log. The sink sets their ID, At and Role. A consumer records only the kinds of
// [DecisionKind.RecordedByConsumer], and nothing in the name of an operator.
func (r *Records[TX]) Record(ctx context.Context, ds []Decision) error {
	var cs []Change
	for _, d := range ds {
		if !d.Kind.RecordedByConsumer() {
			return fmt.Errorf("operate: a consumer records no %s", d.Kind)
		}
		cs = append(cs, EntryOf(d.WithoutOperator()))
	}
	if len(cs) == 0 {
		return nil
	}
	if err := r.ledger.Write(ctx, cs...); err != nil {
		return fmt.Errorf("operate: record %d decisions: %w", len(ds), err)
	}
	return nil
}

// MaxHangs limits the decisions that [Records.Hangs] returns.
const MaxHangs = 100

var aboutHangs = named(DecidedHang, DecidedOnFailureHang, DecidedRewind, DecidedSkip, DecidedResume, DecidedRebase, DecidedRun)

// Hangs returns the hangs of p ([DecidedHang], [DecidedOnFailureHang]) that were recorded after the last
// decision that forgives them ([DecisionKind.ForgivesHangs]). They are newest first and at most
// [MaxHangs]. A consumer calls Hangs once in a tenure, and at each further claim while a
// message hangs.
func (r *Records[TX]) Hangs(ctx context.Context, p epoch.Partition) (found []Decision, err error) {
	rows, err := r.ledger.Rows(ctx, RowQuery{Kind: KindEntry, Partition: &p, States: aboutHangs, Newest: true, Limit: MaxHangs})
	if err != nil {
		return nil, fmt.Errorf("operate: read what hung on %s: %w", p, err)
	}
	for _, row := range rows {
		d, err := DecisionOf(row)
		if err != nil {
			continue // it does not say which messages
		}
		if d.Kind.ForgivesHangs() {
			break
		}
		found = append(found, d)
	}
	return found, nil
}

// Requests are requests of operators to the owners of partitions.
type Requests struct {
	// Acts changes with each [Act] in this sink.
	Acts int64

	// Replays are some of the oldest requested replays of each partition, and of those that are due, by ID.
	Replays []RequestedReplay
}

// RequestedReplay is an operator's request that the handler applies the message of a dead letter, or the handler's own.
type RequestedReplay struct {
	ID      int64 // of the dead letter
	Request int64 // rises with each request for the dead letter
	Message epoch.Message

	// Deferred counts how often the handler has deferred the message. IsDue says that it is replayed for that reason,
	// Delay after the last time, and not because an operator has requested it.
	Deferred int
	IsDue    bool
	Delay    time.Duration

	row Row
}

// Requests returns the requests to the owners of ps.
func (r *Records[TX]) Requests(ctx context.Context, ps []epoch.Partition) (found Requests, err error) {
	acts, rows, err := r.ledger.Requests(ctx, ps)
	if err != nil {
		return Requests{}, fmt.Errorf("operate: look for requests about %d partitions: %w", len(ps), err)
	}
	found.Acts = acts
	for _, row := range rows {
		l, _, err := letterOf(row)
		if err != nil {
			continue // an operator who looks at it is told why
		}
		row.Key, row.Value, row.Headers = nil, nil, nil
		found.Replays = append(found.Replays, RequestedReplay{
			ID: l.ID, Request: l.Request, Message: l.Message, Deferred: l.Deferred, IsDue: !l.Due.IsZero(), Delay: row.Delay(), row: row,
		})
	}
	return found, nil
}

// about returns the entry of the audit log about what became of a replay.
func (r RequestedReplay) about(kind DecisionKind, f epoch.Fence, why string) Change {
	return EntryOf(Decision{
		Kind: kind, Partition: r.Message.Partition, Epoch: f.Epoch, Claim: f.Claim, Owner: f.Owner,
		From: r.Message.Offset, To: r.Message.Offset, Reason: fmt.Sprintf("dead letter %d%s", r.ID, why), By: r.row.By,
	})
}

// Replayed deletes the dead letter of q in tx, a transaction of Commit under the claim in f in which a
// handler has applied its message. If it is no longer requested, Replayed or the commit returns
// [ErrRowChanged], and nothing is committed.
func (r *Records[TX]) Replayed(ctx context.Context, tx TX, q RequestedReplay, f epoch.Fence) error {
	if err := r.ledger.WriteIn(ctx, tx, Change{Row: q.row, Remove: true}, q.about(DecidedReplay, f, "")); err != nil {
		return fmt.Errorf("operate: replay dead letter %d of %s, at offset %d: %w", q.ID, q.Message.Partition, q.Message.Offset, err)
	}
	return nil
}

// ReplayFailed records that the replay of q has failed under the claim in f, if it is still
// requested. The dead letter stays, with the cause, and the request ends.
func (r *Records[TX]) ReplayFailed(ctx context.Context, q RequestedReplay, f epoch.Fence, cause error) error {
	err := r.replayFailed(ctx, q, f, ErrorText(cause))
	if err != nil && !errors.Is(err, ErrRowChanged) {
		return fmt.Errorf("operate: record that the replay of dead letter %d of %s has failed: %w", q.ID, q.Message.Partition, err)
	}
	return nil
}

func (r *Records[TX]) replayFailed(ctx context.Context, q RequestedReplay, f epoch.Fence, cause string) error {
	l, b, err := letterOf(q.row)
	if err != nil {
		return err
	}
	l.ReplayError = cause
	return r.ledger.Write(ctx, revised(q.row, l, b, StateFailed), q.about(DecidedReplayFailure, f, ": "+Text(cause, maxName)))
}

// maxDelay limits how long a message is deferred. Longer delays count as this one.
const maxDelay = 365 * 24 * time.Hour

// Defer stores m in tx, a transaction of Commit under the epoch e that moves past it, to be replayed after a delay by
// the sink's clock.
func (r *Records[TX]) Defer(ctx context.Context, tx TX, m epoch.Message, e epoch.Epoch, cause error, delay time.Duration) error {
	c := newLetter(m, e, cause)
	c.State, c.Body = StateDeferred, encode(&letterBody{Time: instant.JSON{Time: m.Time}, Mark: m.Mark, Deferred: 1, DelayMS: inMillis(delay)})
	if err := r.ledger.WriteIn(ctx, tx, c); err != nil {
		return fmt.Errorf("operate: defer %s at offset %d: %w", m.Partition, m.Offset, err)
	}
	return nil
}

func inMillis(delay time.Duration) int64 { return min(max(delay, 0), maxDelay).Milliseconds() }

// DeferAgain records that the replay of q has failed, and defers the message once more, if the replay is still
// requested.
func (r *Records[TX]) DeferAgain(ctx context.Context, q RequestedReplay, cause error, delay time.Duration) error {
	l, b, err := letterOf(q.row)
	if err == nil {
		l.ReplayError, l.RequestedBy = ErrorText(cause), ""
		b.Deferred, b.DelayMS = b.Deferred+1, inMillis(delay)
		err = r.ledger.Write(ctx, revised(q.row, l, b, StateDeferred))
	}
	if err != nil && !errors.Is(err, ErrRowChanged) {
		return fmt.Errorf("operate: defer dead letter %d of %s again: %w", q.ID, q.Message.Partition, err)
	}
	return nil
}

// Deferred counts the deferred messages in partitions of a group that are ours, among the first 1,000 of the group. A
// ledger that would read all its rows for that counts them itself.
func (r *Records[TX]) Deferred(ctx context.Context, group string, ours func(p epoch.Partition) bool) (int, error) {
	if l, ok := r.ledger.(interface {
		CountDeferred(context.Context, func(epoch.Partition) bool) (int, error)
	}); ok {
		return l.CountDeferred(ctx, ours)
	}
	rows, err := r.ledger.Rows(ctx, RowQuery{Kind: KindLetter, Filter: Filter{Group: group}, States: []string{StateDeferred}, Limit: 1000})
	rows = slices.DeleteFunc(rows, func(row Row) bool { return !ours(row.Partition) })
	return len(rows), err
}

// keptProcess is how long a process is listed that did not shut down in good order.
const keptProcess = 7 * 24 * time.Hour

// Alive records a sign of life of p. The sink sets Since, Seen and Now by its clock.
// A consumer calls Alive when it starts, and then once in each p.Every. Alive deletes signs of
// life of dead processes with the group and name of p and, the first time, of all that are older
// than 7 days.
func (r *Records[TX]) Alive(ctx context.Context, p Process) error {
	sign := signOf(p)
	err := r.ledger.Write(ctx, sign)
	if err == nil {
		q := RowQuery{Kind: KindProcess}
		if r.signs.Add(1) > 1 {
			q.Group, q.By = sign.Partition.Group, sign.By
		}
		err = r.sweep(ctx, q, sign.Row)
	}
	if err != nil {
		return fmt.Errorf("operate: sign of life of %s in group %q: %w", p.Name, p.Group, err)
	}
	return nil
}

// sweep deletes those of q that are gone, as far as own, which lives, shows.
func (r *Records[TX]) sweep(ctx context.Context, q RowQuery, own Row) error {
	rows, err := r.ledger.Rows(ctx, q)
	if err != nil {
		return err
	}
	var gone []Change
	for _, row := range rows {
		p, err := ProcessOf(row)
		if errors.Is(err, form.ErrNewer) || p.Seen.IsZero() {
			continue // who can read it deletes it
		}
		replaced := row.Partition == own.Partition && row.By == own.By && row.Name != own.Name && !p.Alive()
		if replaced || p.Now.Sub(p.Seen) > keptProcess {
			gone = append(gone, Change{Row: row, Remove: true})
		}
	}
	if len(gone) == 0 {
		return nil
	}
	return r.ledger.Write(ctx, gone...)
}

// Gone deletes the sign of life of p, which has ended in good order.
func (r *Records[TX]) Gone(ctx context.Context, p Process) error {
	if err := r.ledger.Write(ctx, Change{Row: signOf(p).Row, Remove: true}); err != nil {
		return fmt.Errorf("operate: take away the sign of life of %s in group %q: %w", p.Name, p.Group, err)
	}
	return nil
}

// PutAside stores m as a dead letter in tx. The methods DeadLetter of sinks call it.
func PutAside[TX any](ctx context.Context, l Ledger[TX], tx TX, m epoch.Message, e epoch.Epoch, cause error) error {
	if err := l.WriteIn(ctx, tx, newLetter(m, e, cause)); err != nil {
		return fmt.Errorf("operate: dead letter %s at offset %d: %w", m.Partition, m.Offset, err)
	}
	return nil
}
