package lease

import (
	"errors"
	"fmt"
)

var (
	// ErrLost is returned when the lease is not held any more. Another member may hold it. It is also
	// in the cause of [Held.Context].
	ErrLost = errors.New("the lease was lost")

	// ErrStalled is the reason of an [ErrLost] after Options.MaxStall without a [Held.Progress] or
	// [Held.Confirm].
	ErrStalled = errors.New("no progress was reported")

	// ErrDrainOverrun is the reason of an [ErrLost] if a resource was not given back within Term after
	// [Held.Draining] was closed.
	ErrDrainOverrun = errors.New("it was not given back in time")

	// ErrExpired is the reason of an [ErrLost] if no renewal of the registration was acknowledged for
	// nine tenths of TTL.
	ErrExpired = errors.New("no renewal was acknowledged for nine tenths of the TTL")

	// ErrHeld is returned by [Member.TryAcquire] when the lease cannot be had now.
	ErrHeld = errors.New("the lease is held")

	// ErrClosed is returned once the context of [Member.Run] has ended, and after [Member.Close].
	ErrClosed = errors.New("the member was closed")
)

var (
	errTaken        = errors.New("another member may have the lease")
	errUnregistered = errors.New("the registration is gone")
	errEnded        = errors.New("it was released")
)

// lost wraps an error so that it matches [ErrLost].
func lost(why error) error {
	if errors.Is(why, ErrLost) {
		return why
	}
	return fmt.Errorf("%w: %w", ErrLost, why)
}
