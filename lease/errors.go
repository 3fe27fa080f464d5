package lease

import (
	"errors"
	"fmt"

	"github.com/epochfence/epochfence/cas"
)

var (
	// ErrLost is returned when the lease is not held any more. Another member may hold it. It is also
	// in the cause of [Held.Context].
	ErrLost = errors.New("the lease was lost")

	// ErrStalled is the reason of an [ErrLost] after Options.MaxStall without a [Held.Progress] or
	// [Held.Confirm]. A [Claimed.Do] that took longer while others reported progress returns it alone.
	ErrStalled = errors.New("no progress was reported")

	// ErrDrainOverrun is the reason of an [ErrLost] if a resource was not given back within Term after
	// [Held.Draining] was closed.
	ErrDrainOverrun = errors.New("it was not given back in time")

	// ErrExpired is the reason of an [ErrLost] if no renewal of the registration was acknowledged for
	// nine tenths of TTL.
	ErrExpired = errors.New("no renewal was acknowledged for nine tenths of the TTL")

	// ErrHeld is returned by [Member.TryAcquire] when the lease cannot be had now.
	ErrHeld = errors.New("the lease is held")

	// ErrUnanswered is returned by [Member.TryAcquire] when the store does not answer, refuses what is
	// written to it, or is not suitable any more.
	ErrUnanswered = errors.New("the store of the leases does not answer as it should")

	// ErrClosed is returned once the context of [Member.Run] has ended, and after [Member.Close].
	ErrClosed = errors.New("the member was closed")
)

var (
	errTaken        = errors.New("another member may have the lease")
	errUnregistered = errors.New("the registration is gone")
	errOverlong     = fmt.Errorf("%w: one call of Do took longer than Options.MaxStall", ErrStalled)
	errEnded        = errors.New("it was released")
	errLate         = fmt.Errorf("%w: it was written meanwhile", ErrHeld) // and may be free
)

// failure returns what an error of the store means to a caller that wants a lease.
func failure(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, cas.ErrConflict):
		return ErrHeld
	}
	return fmt.Errorf("%w: %w", ErrUnanswered, err)
}

// lost wraps an error so that it matches [ErrLost].
func lost(why error) error {
	if errors.Is(why, ErrLost) {
		return why
	}
	return fmt.Errorf("%w: %w", ErrLost, why)
}
