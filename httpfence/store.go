package httpfence

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/epochfence/epochfence/epoch"
)

// Store keeps the highest epoch of each scope, and the answer to each
// idempotency key of a scope. [Memory] and [SQLStore] are the ones there are.
//
// The property on which the rest stands: of one scope, effects run one at a
// time, and none begins under an epoch lower than that of one that began
// before it.
type Store interface {
	// Serve waits until no other call of c's scope is being served, and then
	// does one of these:
	//
	//   - it refuses with a [*StaleError] if the scope has seen a higher epoch;
	//   - it refuses with a [*KeyReusedError] if c.Key has the answer to a
	//     request with another fingerprint;
	//   - it returns the stored answer if c.Key has one, without calling effect;
	//   - it calls effect, once, and stores the answer for c.Key if keep is true.
	//
	// Except where it refuses, c.Epoch is then the highest of its scope, also
	// where keep is false or effect panics; and where they are, what effect
	// wrote to the store's own transaction is undone.
	//
	// ctx bounds the wait: [ErrBusy]. Once effect has begun, ctx ends nothing any more;
	// the context of effect carries its values, and bounds no time.
	Serve(ctx context.Context, c Call, f Fingerprint, effect func(ctx context.Context) (a Answer, keep bool)) (Reply, error)
}

// Fingerprint tells requests with the same key apart: a SHA-256 over the
// method, the URL's path and query, and the body.
type Fingerprint [32]byte

// Answer is the answer of a handler.
type Answer struct {
	Status  int
	Header  http.Header
	Trailer http.Header
	Body    []byte
}

// Reply is the result of [Store] for a call.
type Reply struct {
	Answer
	Replayed bool // it is the stored answer
}

// ErrBusy is returned when a call did not get its turn in time. It had no effect.
var ErrBusy = errors.New("busy")

// ErrStale is returned when the scope has seen a higher epoch; see [StaleError].
var ErrStale = errors.New("stale epoch")

// StaleError refuses a call under an epoch that was superseded.
type StaleError struct {
	Scope   string
	Epoch   epoch.Epoch
	Highest epoch.Epoch // that the scope has seen
}

func (e *StaleError) Error() string {
	return fmt.Sprintf("httpfence: scope %q: %v: %d, and %d has been seen", e.Scope, ErrStale, e.Epoch, e.Highest)
}

// Unwrap returns [ErrStale].
func (e *StaleError) Unwrap() error { return ErrStale }

// ErrKeyReused is returned when the key belongs to another request; see [KeyReusedError].
var ErrKeyReused = errors.New("idempotency key was used for another request")

// KeyReusedError refuses a call whose key belongs to another request.
type KeyReusedError struct{ Scope, Key string }

func (e *KeyReusedError) Error() string {
	return fmt.Sprintf("httpfence: scope %q: key %q: %v", e.Scope, e.Key, ErrKeyReused)
}

// Unwrap returns [ErrKeyReused].
func (e *KeyReusedError) Unwrap() error { return ErrKeyReused }
