package lease

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"
	"unicode/utf8"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/internal/text/inert"
	"github.com/epochfence/epochfence/internal/text/process"
)

// This file has the options of a member with their defaults and limits, and the errors of the
// package. What follows from an error is decided where it is returned.

// Options configure a [Member].
type Options struct {
	// Group scopes the leases. It is UTF-8 of up to 512 bytes that fits into the store's keys. Required.
	Group string

	// Resources are the resources that [Member.Run] shares with the other members of the group: the
	// number of resources by name. Members may serve different resources. Leave it empty for locks,
	// which need no Run.
	Resources map[string]int32

	// TTL is the time after which other members take the leases of a member that does not renew its
	// registration, from 500 ms to 1 h. A member that lives for less than a TTL never takes over.
	// All members should use the same value. Lower it so that others take over sooner, at the price
	// of more renewals. Defaults to 15 s.
	TTL time.Duration

	// MaxStall is how long a holder may call neither [Held.Progress] nor [Held.Confirm]. After that
	// its lease is given up. It also limits each call of [Do] and [Claimed.Do], from when the lease
	// is held. [Claimed.Background] reports progress for its work. A negative value sets no limit.
	// Raise it for work that reports no progress for longer. Defaults to 1 min, or four TTLs if that
	// is longer.
	MaxStall time.Duration

	// Name names this process for operators, before the host's name and the process id. It need not
	// be unique. Set it if host name and process id do not identify the process. Optional.
	Name string

	// Joined is called with nil after each acknowledged renewal of the registration, and with an
	// error when the registration is over and no renewal was acknowledged for half of TTL. Calls do
	// not overlap. Set it for a readiness probe. Optional.
	Joined func(error)

	// Ready is called when another member has ended the registration of this one (see [Member.End]). The member
	// registers again once Ready returns nil, and calls it again until then. Set it if this process may be
	// unable to use leases, for example because it does not reach its database. Optional.
	Ready func(context.Context) error

	// Removal returns the command with which an operator deletes a key. Log lines about foreign
	// values contain it. Set it if operators have such a command, as for a NATS bucket. Optional.
	Removal func(key string) string

	// Observe is called with each [Event], if it is set. Calls come from several goroutines, and
	// those about one lease come in order. Observe must not block: leases may not be renewed
	// meanwhile. A panic of Observe is not recovered; if the caller of Acquire recovers it, the
	// lease stays taken until [Member.Close]. Set it for metrics: operate/stats has ObserveLease.
	// Optional.
	Observe func(Event)

	// Logger receives the log lines. Defaults to [slog.Default].
	Logger *slog.Logger
}

const (
	defaultTTL = 15 * time.Second
	leastStall = time.Minute // of the default
	leastTTL   = 500 * time.Millisecond
	mostTTL    = time.Hour

	mostName = 512 // bytes
)

func (o Options) withDefaults() (Options, error) {
	if o.TTL == 0 {
		o.TTL = defaultTTL
	}
	if o.MaxStall == 0 {
		o.MaxStall = max(leastStall, 4*o.TTL)
	}
	if o.Joined == nil {
		o.Joined = func(error) {}
	}
	if o.Removal == nil {
		o.Removal = func(key string) string { return fmt.Sprintf("delete the key %q of the store", key) }
	}
	if o.Observe == nil {
		o.Observe = func(Event) {}
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if err := o.check(); err != nil {
		return Options{}, err
	}
	o.Name = process.Named(o.Name)
	return o, nil
}

func (o Options) check() error {
	if o.Group == "" {
		return errors.New("lease: Options.Group is empty")
	}
	for _, name := range []struct{ option, v string }{{"Group", o.Group}, {"Name", o.Name}} {
		if !utf8.ValidString(name.v) || len(name.v) > mostName {
			return fmt.Errorf("lease: Options.%s is %q; want valid UTF-8 of up to %d bytes", name.option, inert.Short(name.v), mostName)
		}
	}
	if o.TTL < leastTTL || o.TTL > mostTTL {
		return fmt.Errorf("lease: Options.TTL is %v; want 0 for the default of %v, or %v to %v", o.TTL, defaultTTL, leastTTL, mostTTL)
	}
	for name, n := range o.Resources {
		if name == "" || n < 0 || !utf8.ValidString(name) {
			return fmt.Errorf("lease: Options.Resources has %d of %q; want a name in UTF-8, and no negative number", n, inert.Short(name))
		}
	}
	return nil
}

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
