package guard

import (
	"errors"
	"fmt"

	"github.com/epochfence/epochfence/epoch"
)

// This file decides what observers learn about a change. It has no effect on what is written.

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
	s := it.first.of(at)
	was, _ := it.note.of(s.Partition)
	return Event{Key: it.key, Stamp: s, Decision: d, Seen: was.Epoch, Err: err}
}

// found returns the event of a message whose change the item has. Only this claim writes its epoch, so
// the change may be the one that this item wrote without an answer.
func (it *item) found(at epoch.Position, doubted bool) Event {
	e := it.event(at, Repeated, nil)
	if doubted && e.Seen == it.first.Epoch {
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
	if !it.observed {
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
