package httpfence

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/epochfence/epochfence/epoch"
)

// This file has the options of a Handler with their defaults, and its events. handler.go decides
// which outcome a request has.

// Options configure a [Handler]. The zero value works.
type Options struct {
	// MaxBody and MaxAnswer limit the body of a request and of an answer, in bytes. Both are held
	// in memory, and the answer is stored. A larger request is refused; a handler that writes a
	// larger answer fails: see [Handler]. Raise them if senders or the handler need more. They
	// default to 256 KiB and 64 KiB.
	MaxBody, MaxAnswer int64

	// MaxInside limits the requests that are inside the Handler at a time. Most of them wait for
	// their scope, with their body in memory. Further requests are refused with 503. Bodies and
	// answers take up to MaxInside times the sum of MaxBody and MaxAnswer, 160 MiB by default, and
	// more while they are read or written. Lower it if the process has little memory. Defaults to
	// 512.
	MaxInside int

	// Wait limits how long a request waits for other requests of its scope, for a connection, and
	// for the store's locks. Raise it if many requests of one scope come at a time: a request that
	// waits longer is refused with 503. Defaults to 10 s.
	Wait time.Duration

	// HandlerTimeout limits the context of the handler. A handler that does not return when the
	// context ends blocks its scope. Raise it if the handler needs longer. Defaults to 30 s.
	HandlerTimeout time.Duration

	// Observe, if set, is called with each [Event] before the request is answered. It must not
	// block. Calls may overlap. Set it for metrics: operate/stats has ObserveReceiver.
	Observe func(Event)

	// Logger receives a line for each failure of the store. Defaults to [slog.Default].
	Logger *slog.Logger
}

// Event reports a request.
type Event struct {
	Outcome Outcome
	Call                  // zero if its headers were not read
	Highest epoch.Epoch   // of the scope, if Outcome is Stale
	Took    time.Duration // until the answer was known, including the wait for the turn
	Err     error         // why it was refused, or why the store failed
}

// Outcome is the outcome of a request.
type Outcome int

// The outcomes.
const (
	Applied   Outcome = iota // the handler was called, and its answer was stored
	Undone                   // the handler was called, and its answer was not stored
	Replayed                 // the request got the stored answer
	Stale                    // refused: the scope has seen a higher epoch
	KeyReused                // refused: the key belongs to another request
	Malformed                // refused: a header or the body is missing or wrong
	Busy                     // refused: it did not get its turn in time
	Failed                   // the store failed
)

func (o Outcome) String() string {
	names := [...]string{"applied", "undone", "replayed", "stale", "key reused", "malformed", "busy", "failed"}
	if o < 0 || int(o) >= len(names) {
		return fmt.Sprintf("outcome %d", int(o))
	}
	return names[o]
}

func (o Options) withDefaults() (Options, error) {
	var err error
	check := func(name string, v *int64, zero, most int64, show func(int64) any) {
		if *v == 0 {
			*v = zero
		}
		if err == nil && (*v < 0 || *v > most) {
			err = fmt.Errorf("httpfence: Options.%s is %v; want 0 for the default of %v, or up to %v", name, show(*v), show(zero), show(most))
		}
	}
	plain := func(n int64) any { return n }
	span := func(n int64) any { return time.Duration(n) }
	inside := int64(o.MaxInside)
	check("MaxBody", &o.MaxBody, 256<<10, 1<<30, plain)
	check("MaxAnswer", &o.MaxAnswer, 64<<10, 1<<30, plain)
	check("MaxInside", &inside, 512, 1<<20, plain)
	check("Wait", (*int64)(&o.Wait), int64(10*time.Second), int64(24*time.Hour), span)
	check("HandlerTimeout", (*int64)(&o.HandlerTimeout), int64(30*time.Second), int64(24*time.Hour), span)
	o.MaxInside = int(inside)
	if o.Observe == nil {
		o.Observe = func(Event) {}
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	return o, err
}
