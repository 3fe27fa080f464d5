package httpfence

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"time"

	"github.com/epochfence/epochfence/epoch"
)

// This file has the options and the events of a Handler, and decides how a request passes the receiver:
// what is refused before the store, when the handler runs, and which status an error gets. The epochs are
// compared by the store, in its method admit: transaction.go for SQL, store.go for Memory.

// Handler returns a handler that calls next at most once for each request, and never under an epoch
// lower than the highest that its scope has seen.
//
// A request needs the headers [EpochHeader], [ScopeHeader] and [KeyHeader]. It waits until no other
// request of its scope is being served. A request with a stale epoch is refused. A request with a
// known key gets the stored answer. For any other request Handler calls next. A refusal is a
// [Problem]. The Type constants name the statuses.
//
// Handler sends the answer of next after it is stored. If the answer is [Retryable], larger than
// Options.MaxAnswer or has more than 64 KiB of headers, or if next panics, nothing is stored, and
// what next wrote through [Tx] is rolled back. The epoch still counts. The panic continues.
//
// The context of next does not end when the client goes away: the answer is stored for the client's
// next try. The ResponseWriter of next cannot be flushed or hijacked, and drops informational (1xx)
// answers. Trailers are kept.
//
// Handler panics if store or next is nil or the Options are out of range.
func Handler(store Store, next http.Handler, o Options) http.Handler {
	o, err := o.withDefaults()
	if err != nil {
		panic(err)
	}
	if store == nil || next == nil {
		panic("httpfence: Handler needs a store and a handler")
	}
	return &handler{store: store, next: next, o: o, inside: make(chan struct{}, o.MaxInside)}
}

type handler struct {
	store  Store
	next   http.Handler
	o      Options
	inside chan struct{}
}

func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	began := time.Now()
	select {
	case h.inside <- struct{}{}:
		defer func() { <-h.inside }()
	default:
		h.refuse(w, began, Call{}, fmt.Errorf("httpfence: %w: %d requests are inside", ErrBusy, h.o.MaxInside))
		return
	}
	c, err := ReadCall(r.Header)
	if err != nil {
		h.refuse(w, began, Call{}, err)
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, h.o.MaxBody))
	if err != nil {
		h.refuse(w, began, c, &bodyError{err})
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), h.o.Wait)
	defer cancel()
	outcome, returned := Replayed, false
	defer func() {
		if !returned { // the handler panicked
			h.o.Observe(Event{Outcome: Undone, Call: c, Took: time.Since(began)})
		}
	}()
	reply, err := h.store.Serve(ctx, c, fingerprint(r, body), func(ctx context.Context) (Answer, bool) {
		outcome = Undone
		a, keep := h.run(context.WithValue(ctx, callKey{}, c), r, body)
		if keep {
			outcome = Applied
		}
		return a, keep
	})
	returned = true
	if err != nil {
		h.refuse(w, began, c, err)
		return
	}
	h.o.Observe(Event{Outcome: outcome, Call: c, Took: time.Since(began)})
	reply.write(w, r.Method)
}

func (h *handler) run(ctx context.Context, r *http.Request, body []byte) (Answer, bool) {
	ctx, cancel := context.WithTimeout(ctx, h.o.HandlerTimeout)
	defer cancel()
	r = r.WithContext(ctx)
	r.Body = io.NopCloser(bytes.NewReader(body))
	r.ContentLength = int64(len(body))
	r.TransferEncoding = nil
	rec := newRecorder(h.o.MaxAnswer)
	h.next.ServeHTTP(rec, r)
	a, err := rec.answer()
	if err != nil {
		h.o.Logger.Error("the handler's answer cannot be kept", "method", r.Method, "pattern", r.Pattern, "err", err)
		return failure("the handler's answer cannot be kept").answer(), false
	}
	return a, !Retryable(a.Status)
}

func (h *handler) refuse(w http.ResponseWriter, began time.Time, c Call, err error) {
	p, outcome := problemOf(err)
	if outcome == Failed {
		h.o.Logger.Error("a request failed in the fence's store", "scope", c.Scope, "epoch", int64(c.Epoch), "key", c.Key, "err", err)
	}
	h.o.Observe(Event{Outcome: outcome, Call: c, Highest: p.Highest, Took: time.Since(began), Err: err})
	p.write(w)
}

type bodyError struct{ err error }

func (e *bodyError) Error() string {
	return "httpfence: read the body of the request: " + e.err.Error()
}
func (e *bodyError) Unwrap() error { return e.err }

func problemOf(err error) (Problem, Outcome) {
	var stale *StaleError
	var body *bodyError
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &stale):
		return Problem{
			Type: TypeStale, Title: "Stale epoch", Status: http.StatusPreconditionFailed, Detail: err.Error(),
			Scope: stale.Scope, Epoch: stale.Epoch, Highest: stale.Highest,
		}, Stale
	case errors.Is(err, ErrKeyReused):
		return Problem{Type: TypeKeyReused, Title: "Idempotency key reused", Status: http.StatusUnprocessableEntity, Detail: err.Error()}, KeyReused
	case errors.Is(err, ErrBusy):
		return Problem{Type: TypeBusy, Title: "Busy", Status: http.StatusServiceUnavailable, Detail: "The request did not get its turn in time, and had no effect."}, Busy
	case errors.As(err, &large):
		return Problem{Type: TypeTooLarge, Title: "Request too large", Status: http.StatusRequestEntityTooLarge, Detail: fmt.Sprintf("The body may have %d bytes.", large.Limit)}, Malformed
	case errors.As(err, &body): // the sender's mistake or the network's: it may try again
		return Problem{Type: TypeIncomplete, Title: "Incomplete request", Status: http.StatusRequestTimeout, Detail: err.Error()}, Malformed
	case errors.Is(err, ErrNewer):
		return Problem{Type: TypeNewer, Title: "Newer version", Status: http.StatusNotImplemented, Detail: err.Error()}, Malformed
	case errors.Is(err, ErrMalformed):
		return Problem{Type: TypeMalformed, Title: "Malformed request", Status: http.StatusBadRequest, Detail: err.Error()}, Malformed
	default: // its text is for the log, not for the sender
		return failure("The fence's store failed; try again with the same key."), Failed
	}
}

func failure(detail string) Problem {
	return Problem{Type: TypeFailed, Title: "Failed", Status: http.StatusInternalServerError, Detail: detail}
}

// fingerprint hashes a request. It writes the length before each part, so that no two requests hash
// the same bytes.
func fingerprint(r *http.Request, body []byte) Fingerprint {
	hash := sha256.New()
	for _, part := range [][]byte{[]byte(r.Method), []byte(r.URL.EscapedPath()), []byte(r.URL.RawQuery), body} {
		_ = binary.Write(hash, binary.BigEndian, uint64(len(part)))
		hash.Write(part)
	}
	return Fingerprint(hash.Sum(nil))
}

type callKey struct{}

// CallOf returns the fencing headers of the request, in a handler behind [Handler].
func CallOf(ctx context.Context) (c Call, ok bool) {
	c, ok = ctx.Value(callKey{}).(Call)
	return c, ok
}

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
