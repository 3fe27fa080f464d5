// Package guard changes items of a [cas.Store] exactly once per message. It hides the note of an
// item, which has, for each partition, the messages that changed it and may be delivered again. A
// message that is in the note changes nothing again, and an owner that was paused and wakes up is
// stopped at the first item that its successor has changed:
//
//	changes := guard.At(store, m) // in a handler
//	left, err := changes.Update(ctx, "stock/apples", func(old guard.State) (guard.State, []byte, error) {
//		n := count(old.Value) - 1
//		return guard.Text(n), outcome(n), nil
//	})
//
// Per item, partition and era, each message takes effect at most once, in the order of offsets, and
// exactly once when the fence has passed the message. An era begins when an operator sets the
// position, other than with a skip. Changes of one message become visible one by one. The caller
//
//   - delivers messages in order, and the next one only if [Message.Err] is nil or [ErrPassed];
//   - decides in the change function, from the item and the message, and about other items from the
//     outcome that Update returns: it is stored, and the same when the message is delivered again;
//   - changes an item once per message, and writes items through this package alone;
//   - returns errors of its own before the first Update. Changes stay when the message fails, and
//     the replay of its dead letter makes them again. Package cassink has no such rule.
//
// On a store that forgets acknowledged writes ([cas.Facts.Forgets]), a failover may lose an effect.
package guard

import (
	"context"
	"errors"
	"fmt"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/epoch"
)

// Stamp names which message of which partition changes an item, under which claim and era.
type Stamp struct {
	Partition epoch.Partition
	Log       string       // of the partition, see [epoch.Origin]
	Era       epoch.Epoch  // the epoch under which an operator last set the position, or 0
	Act       string       // names the action that began the era, because a restored fence repeats epochs; or ""
	Epoch     epoch.Epoch  // of the claim under which the message is handled
	Offset    epoch.Offset // of the message
	Mark      epoch.Mark   // of the message, or [epoch.NoMark]
	Replay    int64        // the id of the dead letter if the message is replayed, or of the entry of an outbox whose answer is recorded, or 0
}

// StampOf returns the stamp of a message as a handler gets it. The offset of a message that is
// replayed is below others that were applied, so the id of its dead letter is compared instead.
func StampOf(m epoch.Message) (Stamp, error) {
	if m.Under == nil {
		return Stamp{}, fmt.Errorf("guard: %s@%d: the message does not say under which claim it is handled (Message.Under)", m.Partition, m.Offset)
	}
	return Stamp{
		Partition: m.Partition, Log: m.Under.Log, Era: m.Under.SetUnder, Epoch: m.Under.Epoch, Offset: m.Offset, Mark: m.Mark, Replay: m.Replay,
	}, nil
}

func (s Stamp) at() epoch.Position { return epoch.Position{Offset: s.Offset, Mark: s.Mark} }

// of returns the stamp for another message of the partition.
func (s Stamp) of(at epoch.Position) Stamp {
	s.Offset, s.Mark = at.Offset, at.Mark
	return s
}

// State is an item as a change function sees it and returns it.
type State struct {
	Exists bool
	Value  []byte
}

// Text returns the state of an item that exists and has the value.
func Text(value string) State { return State{Exists: true, Value: []byte(value)} }

// Change returns the new state of an item and an outcome of up to [MaxOutcome] bytes. If the
// message uses outcomes to decide about other items, none of these outcomes may be empty. A change
// may be called several times, also on another goroutine after the handler has returned, so it must
// not have effects of its own. If it returns an error, nothing is written.
type Change func(old State) (now State, outcome []byte, err error)

// Return these errors from the handler, except ErrPassed. ErrTruncated, ErrOtherLog and
// ErrFenceLost match [epoch.ErrUnhealthy].
var (
	// ErrStale is returned when a later owner of the partition has changed the item. See [StaleError].
	ErrStale = errors.New("a later owner of the partition has changed the item")

	// ErrPassed is returned when a later message of the partition has changed the item. Then all of
	// this message was applied: skip the rest of it.
	ErrPassed = errors.New("a later message of the partition has changed the item")

	// ErrTruncated is returned when another message had this offset: the log lost its end, and was
	// written anew.
	ErrTruncated error = unhealthy("another message of this offset has changed the item: the log was truncated")

	// ErrOtherLog is returned when the item was changed by messages of another log under this
	// partition's name, and no operator has set the position since.
	ErrOtherLog error = unhealthy("messages of another log have changed the item")

	// ErrFenceLost is returned when the item was changed after an operator's action that the fence does
	// not know: the fence was restored from a backup, or is another one.
	ErrFenceLost error = unhealthy("the item was changed after an operator's action that the fence does not know")

	// ErrTwice is returned when one message changes an item twice.
	ErrTwice = errors.New("the message has changed this item before")

	// ErrOrder is returned when a batch has changed the item for a later message already.
	ErrOrder = errors.New("a later message of the batch has changed the item")

	// ErrNew is returned when the message was applied before without a change of this item, perhaps
	// by another version of the handler, and a later message has changed the item since.
	ErrNew = errors.New("the message is applied again and would change an item that it left alone the first time, and a later message has changed the item since")

	// ErrOutcomeChanged is returned by [Batch.Write] when others have changed the item since Update, and
	// the outcome is another one by now. Make the changes again in a new batch.
	ErrOutcomeChanged = errors.New("the item has changed, and so has the outcome")

	// ErrPartitions is returned when messages of more than [MaxPartitions] partitions change an item.
	ErrPartitions = fmt.Errorf("more than %d partitions change the item", MaxPartitions)

	// ErrOutcome is returned when an outcome is longer than [MaxOutcome].
	ErrOutcome = fmt.Errorf("the outcome has more than %d bytes", MaxOutcome)

	// ErrDoubt is returned when it is not known whether the change was written. It may be written later.
	// The message has to be delivered again.
	ErrDoubt = errors.New("it is not known whether the change was written")
)

// unhealthy is an error that an operator has to resolve. It matches [epoch.ErrUnhealthy], so a consumer
// whose handler returns it halts the partition, and no message fails.
type unhealthy string

func (e unhealthy) Error() string { return string(e) }

func (unhealthy) Unwrap() error { return epoch.ErrUnhealthy }

// StaleError is returned when a later owner of the partition has changed the item. It matches
// [ErrStale], and [*epoch.LowEpochError]: return it from the handler, so that an owner whose database
// has lost epochs claims again above the item's, and no message fails.
type StaleError struct {
	Partition epoch.Partition
	Epoch     epoch.Epoch // the caller's
	Seen      epoch.Epoch // the item's
}

func (e *StaleError) Error() string {
	return fmt.Sprintf("%v: epoch %d, after %d", ErrStale, e.Epoch, e.Seen)
}

// Unwrap returns [ErrStale] and an [*epoch.LowEpochError].
func (e *StaleError) Unwrap() []error {
	return []error{ErrStale, &epoch.LowEpochError{Partition: e.Partition, Epoch: e.Epoch, Seen: e.Seen}}
}

// PassedError is returned when the message was applied completely. It matches [ErrPassed].
type PassedError struct {
	Position epoch.Offset // all messages before it were applied completely
}

func (e *PassedError) Error() string {
	return fmt.Sprintf("%v: all before offset %d were applied", ErrPassed, e.Position)
}

// Unwrap returns [ErrPassed].
func (e *PassedError) Unwrap() error { return ErrPassed }

const (
	// MaxPartitions limits the partitions whose messages change one item.
	MaxPartitions = 64

	// MaxOutcome limits an outcome, in bytes.
	MaxOutcome = 256

	// MaxReplays limits the replays of dead letters of one partition that an item remembers, beside
	// those of [Batch.Keep]. A replay that has changed the item and then failed is forgotten
	// once MaxReplays other replays have changed the item. Requested after that, it changes the item again.
	MaxReplays = 32
)

// Apply changes an item, unless the message has changed it before. In both cases it returns the
// outcome of the change. It reports no [Event]. The errors are those above, the
// one that change has returned, [cas.ErrKey], [cas.ErrTooLarge], [cas.ErrFull], [cas.ErrForeign], and those of a read that
// failed. After any of these the message has not changed the item, except for [ErrPassed], [ErrStale],
// [ErrFenceLost] and [ErrDoubt].
func Apply(ctx context.Context, store cas.Store, key string, s Stamp, change Change) (outcome []byte, err error) {
	m := Message{store: store, stamp: s}
	return m.apply(ctx, key, change)
}

// Read returns an item as messages have left it. The store may lag behind.
func Read(ctx context.Context, store cas.Store, key string) (State, error) {
	item, err := store.Get(ctx, key)
	if err != nil {
		return State{}, fmt.Errorf("guard: read %q: %w", key, err)
	}
	return StateOf(item)
}

// StateOf returns the state of an item that a store has returned, with its note.
func StateOf(item cas.Item) (State, error) {
	n, err := noteOf(item)
	if err != nil {
		return State{}, fmt.Errorf("guard: read %q: %w", item.Key, err)
	}
	if !item.Live || n.Absent {
		return State{}, nil
	}
	return State{Exists: true, Value: item.Value}, nil
}

// Event reports the decision about a message's change of an item: see [Message.Observe]. In an audit log,
// Key is the resource, and Stamp.Epoch the fencing token.
type Event struct {
	Key      string // of the item
	Stamp    Stamp  // of the message
	Decision Decision

	// Seen is the epoch under which this partition had last changed the item when the item was compared
	// with the message. It is 0 if it had not. If Decision is Stale, Seen is above Stamp.Epoch,
	// and the difference is the token gap.
	Seen epoch.Epoch

	// Err is the reason of a refusal or of the doubt, and nil after Changed and Repeated.
	Err error
}

// Decision is the decision about a message's change of an item.
type Decision uint8

// The decisions. Those from Stale to TooManyPartitions are refusals: Update, or Write of a batch, has
// returned the error.
const (
	Changed           Decision = iota + 1 // the change was written
	Repeated                              // the message had changed the item before, and nothing was written
	Stale                                 // [ErrStale]
	Passed                                // [ErrPassed]
	Truncated                             // [ErrTruncated]
	OtherLog                              // [ErrOtherLog]
	FenceLost                             // [ErrFenceLost]
	Omitted                               // [ErrNew]
	TooManyPartitions                     // [ErrPartitions]
	InDoubt                               // [ErrDoubt], or refused, other than with ErrPassed, after a write whose answer was lost

	undecided Decision = 0
)

// String returns the decision as one word, such as "changed" or "in_doubt".
func (d Decision) String() string {
	names := [...]string{
		"undecided", "changed", "repeated", "stale", "passed", "truncated", "other_log", "fence_lost", "omitted", "too_many_partitions", "in_doubt",
	}
	if int(d) >= len(names) {
		return fmt.Sprintf("Decision(%d)", int(d))
	}
	return names[d]
}

// decisionOf returns the refusal that an error means, or undecided.
func decisionOf(err error) Decision {
	if _, declined := errors.AsType[*declinedError](err); declined {
		return undecided
	}
	for _, r := range [...]struct {
		is       error
		decision Decision
	}{
		{ErrStale, Stale}, {ErrPassed, Passed}, {ErrTruncated, Truncated}, {ErrOtherLog, OtherLog}, {ErrFenceLost, FenceLost},
		{ErrNew, Omitted}, {ErrPartitions, TooManyPartitions},
	} {
		if errors.Is(err, r.is) {
			return r.decision
		}
	}
	return undecided
}

// event returns the event of a decision about the message at this position.
func (it *item) event(at epoch.Position, d Decision, err error) Event {
	s := it.batch.first.of(at)
	was, _ := it.note.of(s.Partition)
	return Event{Key: it.key, Stamp: s, Decision: d, Seen: was.Epoch, Err: err}
}

// found returns the event of a message whose change the item has. Only this claim writes its epoch, so
// the change may be the one that this item wrote without an answer.
func (it *item) found(at epoch.Position, doubted bool) Event {
	e := it.event(at, Repeated, nil)
	if doubted && e.Seen == it.batch.first.Epoch {
		e.Decision = Changed
	}
	return e
}

// refused returns the event of a message that the item has refused with err, or one that is undecided if
// err is no refusal. A stale message may have changed the item before its successor did, if the
// answer to a write was lost. The change of a message that was passed is in the item, whoever wrote it.
func (it *item) refused(at epoch.Position, doubted bool, err error) Event {
	d := decisionOf(err)
	if doubted && d != undecided && d != Passed {
		d = InDoubt
	}
	return it.event(at, d, err)
}

// settle decides about the changes of a write that has ended with err.
func (it *item) settle(changes []made, doubted bool, err error) {
	if !it.observed() {
		return
	}
	for _, c := range changes {
		at := epoch.Position{Offset: c.At, Mark: c.Mark}
		e := it.event(at, Changed, nil)
		e.Seen = c.seen
		switch {
		case errors.Is(err, ErrDoubt):
			e.Decision, e.Err = InDoubt, err
		case err != nil:
			_, why := it.compare(at)
			e = it.refused(at, doubted, why)
		}
		if e.Decision != undecided {
			it.events = append(it.events, e)
		}
	}
}
