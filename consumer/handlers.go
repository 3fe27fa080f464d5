package consumer

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/epochfence/epochfence/epoch"
)

// This file has the user's functions, what they may rely on, and how messages become calls of them.
// transaction.go decides when they are called, and verdict.go what their errors mean.

// Handler applies one message. What it writes through tx commits together with the
// message's position, if and only if this process still owns the partition. e is the epoch
// of its claim; pass it to other systems that should refuse zombies.
//
// Handler may be called again for the same message, after everything it wrote through tx was
// rolled back. It must not use tx after it has returned. It must return when ctx ends: after
// [Options.HangTimeout] it is abandoned, and what it still writes is refused
// ([epoch.ErrAbandoned]). Calls for different partitions may overlap, even with one committer.
// In one process, calls for one partition never do.
//
// An error or a panic rolls the whole transaction back; see [Options.MaxAttempts],
// [Permanent] and [Handlers.OnFailure].
//
// ctx has the values of the message's own context, such as the trace that a tracer of the
// source's client has put there. Handler may keep m, and must not change what m refers to.
//
// A transaction holds the locks of all its messages until it commits, so two processes or
// committers that update the same rows can deadlock. A deadlock costs no message an attempt:
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

// FailureHandler is called for a message that has used up its attempts or failed with
// [Permanent]. cause is the last error. If FailureHandler returns nil, what it wrote through
// tx commits, and the position moves past the message. If it returns an error that is not an
// [epoch.ErrTransient], the partition halts, and the next try starts with Handler and all its
// attempts. If it hangs, the partition halts until an operator pauses and resumes it, or skips
// the message.
type FailureHandler[TX any] func(ctx context.Context, tx TX, m Message, e epoch.Epoch, cause error) error

// Handlers are the user's functions that [Run] calls. [Each] and [Batches] return them. Run
// refuses the zero value.
type Handlers[TX any] struct {
	calls      callsFunc[TX]
	onFailure  FailureHandler[TX]
	background []func(ctx context.Context, b Background[TX])
}

// Each returns Handlers that call handle for each message.
func Each[TX any](handle Handler[TX]) Handlers[TX] {
	if handle == nil {
		return Handlers[TX]{}
	}
	return Handlers[TX]{calls: oneByOne(handle)}
}

// Batches returns Handlers that call handle once for all messages that a transaction takes
// of a partition; see [Options.MaxBatch].
func Batches[TX any](handle BatchHandler[TX]) Handlers[TX] {
	if handle == nil {
		return Handlers[TX]{}
	}
	return Handlers[TX]{calls: allAtOnce(handle)}
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

// suits returns an error at the start of Run rather than at the first message: a sink that cannot
// keep what the options promise would lose effects, or apply them twice, without an error.
func (h Handlers[TX]) suits(o Options, sink epoch.Sink[TX]) error {
	if given := sink.Facts().Guarantee; given < o.Guarantee {
		return fmt.Errorf("consumer: Options.Guarantee asks for a %v sink, and this one is %v: choose another sink, or ask for less", o.Guarantee, given)
	}
	if _, ok := epoch.As[epoch.Holding[TX]](sink); !ok && len(h.background) > 0 {
		return errors.New("consumer: Handlers.Background needs a sink that commits under a claim without moving a position (epoch.Holding), and this one cannot: choose another sink")
	}
	return nil
}

// call is one call of the user's handler. The sink makes the calls of a transaction in order, and
// stops at the first error.
type call[TX any] struct {
	at int // the index of its message, or -1 for all of them
	do func(ctx context.Context, tx TX) error
}

// callsFunc returns the calls of the user's handler that apply messages of one partition.
type callsFunc[TX any] func(ms []Message, e epoch.Epoch) []call[TX]

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
		ms = slices.Clone(ms) // a handler may sort its slice; ours must stay in order
		return []call[TX]{{-1, func(ctx context.Context, tx TX) error { return handle(withValues(ctx, ms[0]), tx, ms, e) }}}
	}
}
