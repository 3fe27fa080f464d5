package consumer

import (
	"context"
	"fmt"
	"slices"

	"github.com/epochfence/epochfence/epoch"
)

// Handler applies one message. What it writes through tx commits together with
// the message's position, if and only if this process still owns the
// partition; e is the epoch under which it does, to hand on to other systems.
//
// The context has the values of the message's own, if it has one: what a tracer of the
// source's client has put there.
//
// The message may be kept: nobody writes again to what it refers to, and neither must the
// handler.
//
// It may be called again for the same message, after everything it wrote
// through tx was rolled back. It must not use tx after it has returned, and must
// return when ctx is cancelled: one that does not is abandoned after [Options.HangTimeout], and
// what it writes then is refused ([epoch.ErrAbandoned]). It is called for several partitions at a time if
// there are several committers, never twice at a time for one partition.
//
// An error rolls the whole transaction back; see [Options.MaxAttempts],
// [Permanent] and [Handlers.OnFailure]. A panic counts as an error.
//
// A transaction holds the locks of all its messages until it commits, so two
// processes, or two committers, that update the same rows can deadlock. That costs
// no message an attempt: the transaction is rolled back, and the next ones take
// fewer messages, down to one, until things are calm. In a transaction that others
// wait for, a wait for a lock is cut short, mostly after some tens of milliseconds
// ([epoch.WithLockWait]). To keep transactions large on rows that everybody
// updates, see to it that no two of them can wait for each other: have a
// [BatchHandler] update rows in one order, such as that of their keys.
type Handler[TX any] func(ctx context.Context, tx TX, m Message, e epoch.Epoch) error

// BatchHandler is a [Handler] for consecutive messages of one partition, at
// least one, in order. Its context has the values of the first message of the
// transaction; each message has its own. The slice is the handler's, to sort and to keep.
type BatchHandler[TX any] func(ctx context.Context, tx TX, ms []Message, e epoch.Epoch) error

// FailureHandler decides over a message that has used up its attempts or failed
// with [Permanent], because of cause. It runs in a fenced transaction which, if it
// returns nil, moves past the message: what it writes is how the message is
// remembered. If it returns an error the partition halts.
type FailureHandler[TX any] func(ctx context.Context, tx TX, m Message, e epoch.Epoch, cause error) error

// Handlers are what a consumer does: with each message, with one that has failed
// for good, and in the background. [Each] and [Batches] make them; the zero
// Handlers do nothing, and Run refuses them.
type Handlers[TX any] struct {
	calls      callsFunc[TX]
	onFailure  FailureHandler[TX]
	background []func(ctx context.Context, b Background[TX])
}

// Each has handle called for each message.
func Each[TX any](handle Handler[TX]) Handlers[TX] {
	if handle == nil {
		return Handlers[TX]{}
	}
	return Handlers[TX]{calls: oneByOne(handle)}
}

// Batches has handle called for what a transaction takes of a partition, all at
// once: see [Options.MaxBatch].
func Batches[TX any](handle BatchHandler[TX]) Handlers[TX] {
	if handle == nil {
		return Handlers[TX]{}
	}
	return Handlers[TX]{calls: allAtOnce(handle)}
}

// OnFailure returns h with a decision over messages that fail for good. Without
// one, or with nil, their partition halts: it stops at the message, is reported,
// and is tried again from time to time.
func (h Handlers[TX]) OnFailure(decide FailureHandler[TX]) Handlers[TX] {
	h.onFailure = decide
	return h
}

// Background returns h with work that goes with a partition but not with one
// message: to relay what handlers left in an outbox, say. It is called for each
// claim of a partition, on a goroutine of its own. Its context ends when the claim
// ends or the partition is revoked; it must return then, as the partition waits for
// it, up to [Options.HangTimeout]. If it returns before, it is not called again under that claim; if it panics,
// it is. Called again, Background adds: all of it goes with the partition, side by side. Nil adds nothing.
func (h Handlers[TX]) Background(work func(ctx context.Context, b Background[TX])) Handlers[TX] {
	if work != nil {
		h.background = append(slices.Clip(h.background), work)
	}
	return h
}

// suits says whether a sink gives what the handlers and options ask for.
func (h Handlers[TX]) suits(o Options, given epoch.Guarantee) error {
	asks := func(what string, asked epoch.Guarantee) error {
		return fmt.Errorf("consumer: %s asks for a %v sink, and this one is %v: choose another sink, or ask for less", what, asked, given)
	}
	switch {
	case given < o.Guarantee:
		return asks("Options.Guarantee", o.Guarantee)
	case given < epoch.Transactional && len(h.background) > 0:
		return asks("Handlers.Background", epoch.Transactional)
	case given < epoch.Transactional && h.onFailure != nil:
		return asks("Handlers.OnFailure", epoch.Transactional)
	}
	return nil
}

// call is one call of a user's function in a transaction.
type call[TX any] struct {
	at int // the index of its message, or -1 for all of them
	do func(ctx context.Context, tx TX) error
}

// callsFunc returns the calls of the user's handler that apply messages of one partition.
type callsFunc[TX any] func(ms []Message, e epoch.Epoch) []call[TX]

// oneByOne and allAtOnce make the two kinds of handlers one.
func oneByOne[TX any](handle Handler[TX]) callsFunc[TX] {
	return func(ms []Message, e epoch.Epoch) []call[TX] {
		calls := make([]call[TX], len(ms))
		for i, m := range ms {
			calls[i] = call[TX]{i, func(ctx context.Context, tx TX) error { return handle(withValues(ctx, m), tx, m, e) }}
		}
		return calls
	}
}

func allAtOnce[TX any](handle BatchHandler[TX]) callsFunc[TX] {
	return func(ms []Message, e epoch.Epoch) []call[TX] {
		ms = slices.Clone(ms) // a handler may sort its slice; ours says what is still to be applied
		return []call[TX]{{-1, func(ctx context.Context, tx TX) error { return handle(ctx, tx, ms, e) }}}
	}
}
