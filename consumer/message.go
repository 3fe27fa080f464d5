package consumer

import (
	"context"

	"github.com/epochfence/epochfence/epoch"
)

// Message is one message of a partition. See [epoch.Message].
type Message = epoch.Message

// Header is one header of a message.
type Header = epoch.Header

// Handler applies one message. What it writes through tx commits together with
// the message's position, if and only if this process still owns the
// partition; e is the epoch under which it does, to hand on to other systems.
//
// It may be called again for the same message, after everything it wrote
// through tx was rolled back. It must not use tx after it has returned, and must
// give up when ctx ends. It is called for several partitions at a time if there
// are several committers, never twice at a time for one partition.
//
// An error rolls the whole transaction back; see [Options.MaxAttempts],
// [Permanent] and [Options.OnFailure]. A panic counts as an error.
//
// A transaction holds the locks of all its messages until it commits, so two
// processes, or two committers, that update the same rows can deadlock. That costs
// no message an attempt: the transaction is rolled back, and the next ones take
// fewer messages, down to one, until things are calm. In a transaction that others
// wait for, a wait for a lock is cut short, mostly after some tens of milliseconds
// ([epoch.WithLockWait]). To keep large transactions on rows that everybody
// updates, make waits impossible to close to a circle: have a [BatchHandler]
// update rows in one order, such as that of their keys, or update each row once.
type Handler[TX any] func(ctx context.Context, tx TX, m Message, e epoch.Epoch) error

// BatchHandler is a [Handler] for consecutive messages of one partition, at
// least one, in order.
type BatchHandler[TX any] func(ctx context.Context, tx TX, ms []Message, e epoch.Epoch) error
