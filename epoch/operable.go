package epoch

import (
	"context"
	"errors"
)

// Operable is what a [Sink] has besides that people can operate: a audit log, and
// requests to whoever owns a partition. A consumer asks for it with [As]. Its methods are
// safe for concurrent use.
type Operable[TX any] interface {
	// Record adds to the audit log what a consumer has met with. It sets ID, At
	// and Role.
	Record(ctx context.Context, ds []Decision) error

	// Hangs returns the decisions about p of which [DecisionKind.IsHang] is true, newest
	// first and at most [MaxHangs]: those since the last one of which
	// [DecisionKind.ForgivesHangs] is true. A consumer calls it once in a tenure, and at
	// each further claim while a message hangs. A partition on which nothing has hung costs it
	// a look at nothing.
	Hangs(ctx context.Context, p Partition) ([]Decision, error)

	// Alive records a sign of life of p, whose Since, Seen and Now the sink sets: the database's
	// time is what counts. A consumer gives one when it starts, and one each p.Every from
	// then on. Those that are out of date are taken away with it: after 7 days, and when a
	// process of the same group and name takes the place of one that is not alive any more.
	Alive(ctx context.Context, p Process) error

	// Gone takes the signs of life of p away: it has ended in good order.
	Gone(ctx context.Context, p Process) error

	// Requests returns what people have asked of the owners of ps, at the cost of
	// little more than a look at nothing.
	Requests(ctx context.Context, ps []Partition) (Requests, error)

	// Replayed takes r from the dead letters, in tx, which is a transaction that Commit
	// has begun under the epoch e and in which a handler has applied r's message. It
	// is [ErrNotRequested], here or at the latest at the commit, which then does not
	// happen, if r is no longer there as it was requested.
	Replayed(ctx context.Context, tx TX, r Replay, e Epoch) error

	// ReplayFailed records that the replay of r, if it still is requested, has failed
	// under the epoch e: it stays a dead letter, with the cause, and is not requested
	// any more.
	ReplayFailed(ctx context.Context, r Replay, e Epoch, cause error) error
}

// MaxHangs limits what [Operable.Hangs] returns.
const MaxHangs = 100

// Requests are what people ask of the owners of partitions.
type Requests struct {
	// Acts changes with each [Act] in this sink: fences may not be as they were.
	Acts int64

	// Replays are those that are requested: of each partition some of the oldest, in
	// the order of their IDs.
	Replays []Replay
}

// Replay is a dead letter whose replay an operator has asked for: its message is given to
// the handler again.
type Replay struct {
	ID      int64 // of the dead letter
	Request int64 // which request this is: it rises with each for a dead letter
	Message Message
}

// As returns sink, or the first of those that it wraps, that is a T. A sink that wraps
// another one has a method Unwrap() Sink[TX].
func As[T any, TX any](sink Sink[TX]) (T, bool) {
	for sink != nil {
		if t, ok := sink.(T); ok {
			return t, true
		}
		w, ok := sink.(interface{ Unwrap() Sink[TX] })
		if !ok {
			break
		}
		sink = w.Unwrap()
	}
	var none T
	return none, false
}

type traceIDKey struct{}

// WithTraceID returns a context for a [Sink]'s Claim that has the audit log name a
// trace.
func WithTraceID(ctx context.Context, id string) context.Context {
	return context.WithValue(ctx, traceIDKey{}, id)
}

// TraceID returns what [WithTraceID] has set, or the empty string.
func TraceID(ctx context.Context) string {
	id, _ := ctx.Value(traceIDKey{}).(string)
	return id
}

// InTrace returns err with the trace in which it came about, which the audit log then
// names beside what a consumer did about it. It is for a [Sink] that traces another one,
// and returns its errors so. A nil err stays nil, and an empty id changes nothing.
func InTrace(err error, id string) error {
	if err == nil || id == "" {
		return err
	}
	return &tracedError{err, id}
}

// TraceOf returns the trace in which err came about, as [InTrace] has set it, or the
// empty string.
func TraceOf(err error) string {
	if t, ok := errors.AsType[*tracedError](err); ok {
		return t.id
	}
	return ""
}

type tracedError struct {
	err error
	id  string
}

func (e *tracedError) Error() string { return e.err.Error() }
func (e *tracedError) Unwrap() error { return e.err }
