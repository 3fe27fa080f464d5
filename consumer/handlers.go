package consumer

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"time"

	"github.com/epochfence/epochfence/consumer/internal/handling"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/text/inert"
	"github.com/epochfence/epochfence/operate"
)

// This file has the user's functions, what they may rely on, and what keeps a failure of theirs inside
// its message (L6). It turns messages into calls of them, and is the door behind which nothing knows the type
// of the sink's transactions. committer.go decides when they are called, and verdict.go what their errors mean.

// Message is one message of a partition. See [epoch.Message]. Package epoch defines it, because sinks
// store messages as dead letters and never import this package.
type Message = epoch.Message

// Header is one header of a message.
type Header = epoch.Header

// Handler applies one message. What it writes through tx commits together with the
// message's position, if and only if this process still owns the partition. e is the epoch
// of its claim; pass it to other systems that should refuse zombies.
//
// Handler may be called again for the same message, after everything it wrote through tx was
// rolled back. It must not use tx after it has returned. It must return when ctx ends: after
// [Options.HangTimeout] it is abandoned, and what it still writes is refused
// ([epoch.ErrAbandoned]). Calls for different partitions may overlap, even if [Options.Committers] is 1.
// In one process, calls for one partition never do, except those of [EachKey].
//
// An error or a panic rolls the whole transaction back; see [Options.MaxAttempts],
// [Permanent] and [Handlers.OnFailure].
//
// ctx has the values of the message's own context, such as the trace that a tracer of the
// source's client has put there. Handler may keep m, and must not change what m refers to.
//
// A transaction holds the locks of all its messages until it commits, so two processes, or two
// transactions of one process, that update the same rows can deadlock. A deadlock costs no message an attempt:
// the transaction is rolled back, and the next ones take fewer messages for a while. Each wait for a
// lock is limited to about the average duration of a transaction, 10 to 750 ms, because other
// partitions wait for the transaction ([epoch.TxOptions]). The limit doubles each time that a
// message alone is refused. To keep transactions large on rows that all of them
// update, use a [BatchHandler] that updates rows in one order, such as that of their keys.
type Handler[TX any] func(ctx context.Context, tx TX, m Message, e epoch.Epoch) error

// BatchHandler is a [Handler] for one or more consecutive messages of one partition, in
// order. Its context has the values of the first message's context. BatchHandler may sort
// and keep ms.
type BatchHandler[TX any] func(ctx context.Context, tx TX, ms []Message, e epoch.Epoch) error

// TransactionHandler is a [Handler] for all messages of a transaction, of one or more partitions. Those of
// one partition are consecutive and in order, and their Under.Epoch is the epoch of its claim. After an
// error each partition gets a transaction of its own, until the message at fault is found. A call that
// hangs costs this process all of its partitions. For the rest, see [BatchHandler].
type TransactionHandler[TX any] func(ctx context.Context, tx TX, ms []Message) error

// FailureHandler is called for a message that has used up its attempts or failed with
// [Permanent]. cause is the last error. If FailureHandler returns nil, what it wrote through
// tx commits, and the position moves past the message. If it returns an error that is not an
// [epoch.ErrTransient], the partition halts, and the next try starts with Handler and all its
// attempts. If it hangs, the partition halts until an operator pauses and resumes it, or skips
// the message.
type FailureHandler[TX any] func(ctx context.Context, tx TX, m Message, e epoch.Epoch, cause error) error

// Handlers are the user's functions that [Run] calls. [Each], [EachKey], [Batches] and [EachTransaction]
// return them. Run refuses the zero value.
type Handlers[TX any] struct {
	each       Handler[TX]
	batch      BatchHandler[TX]
	whole      TransactionHandler[TX]
	beside     int // calls of each at a time
	onFailure  FailureHandler[TX]
	background []func(ctx context.Context, b Background[TX])
}

// Each returns Handlers that call handle for each message.
func Each[TX any](handle Handler[TX]) Handlers[TX] {
	return Handlers[TX]{each: handle, beside: 1}
}

// EachKey returns Handlers that call handle for each message, for up to n messages of a transaction at a time.
// Messages of a partition that have the same key are handled in order, and those of other keys beside them.
// Messages without a key have the same key, the empty one. A key means nothing across partitions.
//
// Use it if handlers wait, for another service or for the database: what n of them wait for passes at the same
// time, in a transaction as large as before, with one position, one check of the fence and one commit. Handlers
// that share memory have to lock it. One that fails rolls back the writes of all. The next transaction takes the
// messages before it, and then it is alone. OnFailure, replays and what has failed twice run in order, as with
// [Each].
//
// The sink must run calls beside each other ([epoch.Facts]): pgsink does, on one connection, and memsink. If n is
// 1, any sink will do. A handler that holds the connection, by rows that it has not closed or a savepoint, makes
// the others wait: do not wait for another handler meanwhile. If calls for several partitions hang, each counts for
// [Options.MaxHung].
func EachKey[TX any](handle Handler[TX], n int) Handlers[TX] {
	return Handlers[TX]{each: handle, beside: n}
}

// Batches returns Handlers that call handle once for all messages that a transaction takes
// of a partition; see [Options.MaxBatch].
func Batches[TX any](handle BatchHandler[TX]) Handlers[TX] {
	return Handlers[TX]{batch: handle, beside: 1}
}

// EachTransaction returns Handlers that call handle once for all messages of a transaction; see
// [Options.MaxBatch]. A statement for a set is then one for all partitions.
func EachTransaction[TX any](handle TransactionHandler[TX]) Handlers[TX] {
	return Handlers[TX]{whole: handle, beside: 1}
}

// OnFailure returns h with a function for messages that fail for good. Without one, such a
// message halts its partition, which is then tried again from time to time.
func (h Handlers[TX]) OnFailure(decide FailureHandler[TX]) Handlers[TX] {
	h.onFailure = decide
	return h
}

// Background returns h with a function that runs beside a partition's messages, such as the
// relay of an outbox. It is called for each claim of a partition, on a goroutine of its own.
// ctx ends when the claim ends or the partition is revoked. work must return then: the
// partition waits for it, up to [Options.HangTimeout]. If work returns earlier, it is not
// called again under that claim; if it panics, it is. Each call of Background adds a
// function. Background ignores nil. The sink must be an [epoch.Holding].
func (h Handlers[TX]) Background(work func(ctx context.Context, b Background[TX])) Handlers[TX] {
	if work != nil {
		h.background = append(slices.Clip(h.background), work)
	}
	return h
}

// Functions is for package consumertest, which calls the functions of h without a consumer.
func (h Handlers[TX]) Functions(handling.Key) (Handler[TX], BatchHandler[TX], TransactionHandler[TX], FailureHandler[TX]) {
	return h.each, h.batch, h.whole, h.onFailure
}

// suits returns an error at the start of Run rather than at the first message: a sink that cannot
// keep what the options promise would lose effects, or apply them twice, without an error.
func (h Handlers[TX]) suits(o Options, sink epoch.Sink[TX]) error {
	if given := sink.Facts().Guarantee; given < o.Guarantee {
		return fmt.Errorf("consumer: Options.Guarantee asks for a %v sink, and this one is %v: choose another sink, or ask for less", o.Guarantee, given)
	}
	if h.beside < 1 {
		return fmt.Errorf("consumer: EachKey is given %d messages at a time: want at least 1", h.beside)
	}
	if h.beside > 1 && !sink.Facts().Beside {
		return errors.New("consumer: EachKey needs a sink that runs the calls of a transaction beside each other (epoch.Facts), and this one runs them in order: use Each, or choose another sink")
	}
	if _, ok := epoch.As[epoch.Holding[TX]](sink); !ok && len(h.background) > 0 {
		return errors.New("consumer: Handlers.Background needs a sink that commits under a claim without moving a position (epoch.Holding), and this one cannot: choose another sink")
	}
	return nil
}

// guard calls f, a user's function, and turns a panic into an error, so that one message cannot
// take down the process and its other partitions. The error that f returns is user code as well;
// guard makes it inert, so that nothing later calls its methods.
func guard(f func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = newPanicError(v, debug.Stack())
		}
	}()
	return inert.Error(f())
}

// errGoexit is the failure of a message whose handler called runtime.Goexit, as FailNow of a test
// does. Goexit cannot be stopped, so each transaction has its own goroutine; see [committer.start].
var errGoexit = errors.New("the handler ended its goroutine: it called runtime.Goexit, or FailNow of a test")

// maskedError is a handler's error on its way through the sink. It hides the sink's own errors,
// because a handler may use another fenced store, whose "stale" or "in doubt" says nothing about
// this transaction. It shows all other errors, so that a sink can distinguish a deadlock from a mistake.
type maskedError struct{ err error }

func (e *maskedError) Error() string { return e.err.Error() }

// Inert marks e as safe: guard made its error inert.
func (e *maskedError) Inert(inert.Mark) {}

func (e *maskedError) Is(target error) bool {
	switch target {
	case epoch.ErrStale, epoch.ErrMoved, epoch.ErrMissing, epoch.ErrInDoubt, epoch.ErrTxEndedByHandler, epoch.ErrOwnTransaction:
		return false
	}
	return errors.Is(e.err, target)
}

func (e *maskedError) As(target any) bool {
	switch target.(type) {
	case **epoch.StaleError, **epoch.MovedError, **epoch.MissingError, **epoch.CallError:
		return false
	}
	return errors.As(e.err, target)
}

// withValues returns ctx with the values of the message's own context, such as a trace, before its own. Deadline and
// cancellation stay those of the transaction.
func withValues(ctx context.Context, m Message) context.Context {
	if m.Context == nil {
		return ctx
	}
	return valued{ctx, context.WithoutCancel(m.Context)}
}

// valued is a context with the values of two contexts. Those of values come first.
type valued struct {
	context.Context
	values context.Context
}

func (c valued) Value(key any) any {
	if v := c.values.Value(key); v != nil {
		return v
	}
	return c.Context.Value(key)
}

// effects is what a Run does in its sink.
type effects interface {
	epoch.Looker
	Seed(ctx context.Context, starts []epoch.Start) error

	// takeOver is [epoch.TakeOver]. limit is the time that each step in the sink may take.
	takeOver(ctx context.Context, limit time.Duration, c epoch.Candidate) (got, seen epoch.Fence, err error)

	// commit applies the messages of a transaction.
	commit(ctx context.Context, t *transaction, o epoch.TxOptions) error

	// commitNothing commits under the claim of f, and moves no position.
	commitNothing(ctx context.Context, f epoch.Fence) error

	// background calls the function of [Handlers.Background] with that number.
	background(ctx context.Context, n int, b *background)
}

// records are the [operate.Records] of a sink, which not all sinks have.
type records interface {
	Requests(ctx context.Context, ps []epoch.Partition) (operate.Requests, error)
	Hangs(ctx context.Context, p epoch.Partition) ([]operate.Decision, error)
	ReplayFailed(ctx context.Context, q operate.RequestedReplay, f epoch.Fence, cause error) error
	DeferAgain(ctx context.Context, q operate.RequestedReplay, cause error, delay time.Duration) error
}

// door implements effects.
type door[TX any] struct {
	epoch.Sink[TX]
	handlers Handlers[TX]
	records  *operate.Records[TX] // nil where the sink has none
}

func (d *door[TX]) takeOver(ctx context.Context, limit time.Duration, c epoch.Candidate) (got, seen epoch.Fence, err error) {
	return epoch.TakeOver(ctx, timed[TX]{d.Sink, limit}, c)
}

// timed is a sink whose steps of a claim have a time limit.
type timed[TX any] struct {
	epoch.Sink[TX]
	limit time.Duration
}

func (s timed[TX]) Look(ctx context.Context, ps []epoch.Partition) (epoch.Fences, error) {
	ctx, done := context.WithTimeout(ctx, s.limit)
	defer done()
	return s.Sink.Look(ctx, ps)
}

func (s timed[TX]) Claim(ctx context.Context, seen epoch.Fence, c epoch.Claim) (epoch.Fence, error) {
	ctx, done := context.WithTimeout(ctx, s.limit)
	defer done()
	return s.Sink.Claim(ctx, seen, c)
}

// commit makes a call of the sink out of each place of the transaction.
func (d *door[TX]) commit(ctx context.Context, t *transaction, o epoch.TxOptions) error {
	advances := make([]epoch.Advance, len(t.parts))
	for i := range t.parts {
		advances[i] = t.parts[i].advance
	}
	calls := make([]func(context.Context, TX) error, len(t.places))
	for n, at := range t.places {
		p := &t.parts[at.batch]
		var ms []Message // copied, because a handler may sort its slice and ours must stay in order
		switch {
		case t.order == together:
			ms = make([]Message, 0, t.messages())
			for i := range t.parts {
				ms = append(ms, t.parts[i].messages...)
			}
		case at.at < 0:
			ms = slices.Clone(p.messages)
		}
		calls[n] = func(ctx context.Context, tx TX) error {
			err := t.call(ctx, n, func() error {
				if delay, ok := deferral(p.failed); ok && d.records != nil {
					return d.records.Defer(ctx, tx, p.messages[0], p.epoch, p.failed, delay)
				}
				return d.handlers.call(ctx, tx, p, at, ms)
			})
			if err == nil && p.replay != nil { // the handler has applied the message of a dead letter
				err = d.records.Replayed(ctx, tx, p.replay.RequestedReplay, p.fence)
			}
			return err
		}
	}
	return d.Commit(ctx, advances, o, calls...)
}

// call passes what is at a place to the user's function for it. ms are all messages of the call, if it may have
// several.
func (h *Handlers[TX]) call(ctx context.Context, tx TX, p *part, at place, ms []Message) error {
	switch {
	case at.at >= 0:
		m := p.messages[at.at]
		if ctx = withValues(ctx, m); p.failed != nil {
			return h.onFailure(ctx, tx, m, p.epoch, p.failed)
		}
		return h.each(ctx, tx, m, p.epoch)
	case len(ms) == 0: // only positions move
		return nil
	case h.whole != nil:
		return h.whole(withValues(ctx, ms[0]), tx, ms)
	default:
		return h.batch(withValues(ctx, ms[0]), tx, ms, p.epoch)
	}
}

func (d *door[TX]) commitNothing(ctx context.Context, f epoch.Fence) error {
	stay := epoch.Advance{Partition: f.Partition, Claim: f.Claim, From: f.Next, To: f.Next, Mark: f.Mark}
	return d.Commit(ctx, []epoch.Advance{stay}, epoch.TxOptions{}, func(context.Context, TX) error { return nil })
}

func (d *door[TX]) background(ctx context.Context, n int, b *background) {
	d.handlers.background[n](ctx, typedBackground[TX]{b, d.Sink})
}

// typedBackground implements [Background].
type typedBackground[TX any] struct {
	*background
	sink epoch.Sink[TX]
}

func (b typedBackground[TX]) Do(ctx context.Context, apply func(context.Context, TX) error) error {
	return b.do(ctx, func(ctx context.Context, o epoch.TxOptions, call func(func() error) error) error {
		return epoch.CommitHeld(ctx, b.sink, b.hold, o, func(ctx context.Context, tx TX) error {
			return call(func() error { return apply(ctx, tx) })
		})
	})
}
