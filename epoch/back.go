package epoch

import (
	"errors"
	"fmt"
)

// This file decides whether a sink has lost what it had committed. Package consumer decides what to
// do about it.

// ErrWentBack is returned when the sink no longer has what it had committed. Effects and
// positions are gone together. Claim again and continue from the fence's position.
var ErrWentBack = errors.New("sink went back")

// WentBackError is returned when a sink has lost claims or advances that it had committed, in a
// restore or in a failover to a server that lacks them. If both fences have the same claim, the
// position may have been set by hand.
type WentBackError struct {
	Was Fence // as last claimed and advanced
	Now Fence // as the sink has it
}

func (e *WentBackError) Error() string {
	was, now := e.Was, e.Now
	s := fmt.Sprintf("%s: %v: it was at offset %d under epoch %d, now at %d under epoch %d",
		was.Partition, ErrWentBack, was.Next, was.Epoch, now.Next, now.Epoch)
	switch lost := was.Next - now.Next; {
	case lost <= 0:
		return s + "; claims of this partition were lost with it"
	case was.Claim == now.Claim:
		return s + fmt.Sprintf(" (unless it was set back by hand); the effects of %d offsets were lost with it "+
			"and are applied again if the log still has their messages", lost)
	default:
		return s + fmt.Sprintf("; the effects of %d offsets were lost with it "+
			"and are applied again if the log still has their messages", lost)
	}
}

// Unwrap returns [ErrWentBack].
func (e *WentBackError) Unwrap() error { return ErrWentBack }

// CheckUnchanged compares f, the fence as last claimed and advanced, with the sink's fence now. It
// returns nil if both have the same claim and position, and otherwise a [*WentBackError],
// [*StaleError] or [*MovedError]. Epochs only grow. Positions only grow too, unless an operator has
// set one since ([Fence.SetUnder]). So a lower epoch or position means that the sink went back.
func (f Fence) CheckUnchanged(now Fence) error {
	switch {
	case now.SetUnder > f.Epoch: // an operator's action has replaced the claim
		return &StaleError{Partition: f.Partition, Ours: f.Claim, Held: now}
	case now.Epoch < f.Epoch, now.Epoch == f.Epoch && now.Claim != f.Claim, now.Next < f.Next:
		return &WentBackError{Was: f, Now: now}
	case now.Claim != f.Claim:
		return &StaleError{Partition: f.Partition, Ours: f.Claim, Held: now}
	case now.Next != f.Next:
		return &MovedError{Partition: f.Partition, From: f.Next, Next: now.Next}
	default:
		return nil
	}
}
