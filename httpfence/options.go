package httpfence

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/epochfence/epochfence/epoch"
)

// Options say how a [Handler] works. The zero Options work.
type Options struct {
	// MaxBody bounds the body of a request, and MaxAnswer that of an answer, in
	// bytes: both are held in memory, and the answer is stored. A larger request is
	// refused. A handler that writes a larger answer has failed: see [Handler].
	// Zero means 256 KiB and 64 KiB, which is what an outbox sends and keeps.
	MaxBody, MaxAnswer int64

	// MaxInside bounds how many requests are inside at a time, most of them
	// waiting for their scope, each with its body in memory. Others are refused
	// at once with 503. Zero means 512. So bodies and answers take up to MaxInside
	// times the sum of MaxBody and MaxAnswer, 160 MiB by default, and half as much again
	// where they come without a Content-Length, as buffers grow.
	MaxInside int

	// Wait bounds how long a request waits for its turn: for others of its
	// scope, for a connection and for the store's locks. Zero means 10 s.
	Wait time.Duration

	// HandlerTimeout bounds the context of the handler. A handler that does not
	// return when it ends keeps its scope for as long as it takes. Zero means 30 s.
	HandlerTimeout time.Duration

	// Observe, if it is set, is told what becomes of each request, before it is
	// answered. It must not block. It is called for several requests at once.
	Observe func(Event)

	// Logger gets a line for each failure of the store. Nil means [slog.Default].
	Logger *slog.Logger
}

// Event tells what became of a request.
type Event struct {
	Outcome Outcome
	Call                  // zero if the request was malformed
	Highest epoch.Epoch   // that the scope has seen, if it was Stale
	Took    time.Duration // until the answer was known, the wait for its turn included
	Err     error         // why it was refused, or the store failed
}

// Outcome is what became of a request.
type Outcome int

// The outcomes.
const (
	Applied   Outcome = iota // the handler was called, and its answer stored
	Undone                   // the handler was called, and its answer not kept
	Replayed                 // the answer was known
	Stale                    // refused: the scope has seen a higher epoch
	KeyReused                // refused: the key is that of another request
	Malformed                // refused: a header is missing or wrong, or the body
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
