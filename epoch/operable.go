package epoch

import (
	"context"
	"errors"
)

// Operable is implemented by a [Sink] that operators can work with. It has an audit log and
// requests to the owners of partitions. A consumer finds it with [As]. Its methods are safe
// for concurrent use.
type Operable[TX any] interface {
	// Record adds ds to the audit log, and sets their ID, At and Role.
	Record(ctx context.Context, ds []Decision) error

	// Hangs returns the decisions about p of which [DecisionKind.IsHang] is true, newest
	// first and at most [MaxHangs]: those since the last one of which
	// [DecisionKind.ForgivesHangs] is true. A consumer calls it once in a tenure, and at
	// each further claim while a message hangs. A partition on which nothing has hung costs it
	// a look at nothing.
	Hangs(ctx context.Context, p Partition) ([]Decision, error)

	// Alive records a sign of life of p. The sink sets Since, Seen and Now by its database's
	// clock. A consumer calls Alive when it starts, and then each p.Every. Alive also deletes
	// signs of life that are older than 7 days, and those of processes that are no longer
	// alive and have the group and name of p.
	Alive(ctx context.Context, p Process) error

	// Gone deletes the sign of life of p, which has ended in good order.
	Gone(ctx context.Context, p Process) error

	// Requests returns the requests to the owners of ps. It is cheap if there are none.
	Requests(ctx context.Context, ps []Partition) (Requests, error)

	// Replayed deletes the dead letter of r in tx, a transaction of Commit under the epoch e in
	// which a handler has applied r's message. If r is no longer requested, Replayed or the
	// commit returns [ErrNotRequested], and nothing is committed.
	Replayed(ctx context.Context, tx TX, r Replay, e Epoch) error

	// ReplayFailed records that the replay of r has failed under the epoch e, if it is still
	// requested. The dead letter stays, with the cause, and the request ends.
	ReplayFailed(ctx context.Context, r Replay, e Epoch, cause error) error
}

// MaxHangs limits the decisions that [Operable.Hangs] returns.
const MaxHangs = 100

// Requests are requests of operators to the owners of partitions.
type Requests struct {
	// Acts changes with each [Act] in this sink.
	Acts int64

	// Replays are some of the oldest requested replays of each partition, by ID.
	Replays []Replay
}

// Replay is a dead letter whose message an operator wants to be applied by the handler again.
type Replay struct {
	ID      int64 // of the dead letter
	Request int64 // rises with each request for the dead letter
	Message Message
}

// As returns the first T among sink and the sinks that it wraps. A sink that wraps another
// one has a method Unwrap() Sink[TX].
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

// WithTraceID returns a context for a [Sink]'s Claim. The audit log records the trace id.
func WithTraceID(ctx context.Context, id string) context.Context {
	return context.WithValue(ctx, traceIDKey{}, id)
}

// TraceID returns what [WithTraceID] has set, or the empty string.
func TraceID(ctx context.Context) string {
	id, _ := ctx.Value(traceIDKey{}).(string)
	return id
}

// InTrace returns err with a trace id, which the audit log records. A [Sink] that traces
// another one returns its errors this way. InTrace returns err itself if err is nil or id is
// empty.
func InTrace(err error, id string) error {
	if err == nil || id == "" {
		return err
	}
	return &tracedError{err, id}
}

// TraceOf returns the trace id that [InTrace] has set, or the empty string.
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
