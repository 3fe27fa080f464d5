package httpfence

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/epochfence/epochfence/epoch"
)

// This file has what a store of epochs and answers must do, and its errors. memory.go and
// sqlstore.go implement it; handler.go calls it.

// Store keeps the highest epoch of each scope, and the answer to each idempotency key of a scope.
// [Memory] and [SQLStore] implement it.
//
// Correctness rests on one property. The effects of a scope run one at a time, and none begins
// under an epoch lower than that of an effect that began before it.
type Store interface {
	// Serve waits until no other call of c's scope is being served, and then does one of these:
	//
	//   - it refuses with a [*StaleError] if the scope has seen a higher epoch;
	//   - it refuses with a [*KeyReusedError] if c.Key has the answer to a
	//     request with another fingerprint;
	//   - it returns the stored answer if c.Key has one, without calling effect;
	//   - it calls effect, once, and stores the answer for c.Key if keep is true.
	//
	// If keep is false or effect panics, Serve undoes the effect's writes to the store's own
	// transaction. Unless Serve refuses, c.Epoch is the highest epoch of its scope afterwards, even
	// if the effect was undone.
	//
	// ctx limits the wait: Serve returns [ErrBusy] when ctx ends. Once effect has begun, the end of
	// ctx has no influence. The context of effect carries ctx's values and has no deadline.
	Serve(ctx context.Context, c Call, f Fingerprint, effect func(ctx context.Context) (a Answer, keep bool)) (Reply, error)
}

// Fingerprint distinguishes requests with the same key. It is the SHA-256 of the method, the URL's
// path and query, and the body.
type Fingerprint [32]byte

// Answer is the answer of a handler.
type Answer struct {
	Status  int
	Header  http.Header
	Trailer http.Header
	Body    []byte
}

// Reply is the result of [Store.Serve].
type Reply struct {
	Answer
	Replayed bool // the answer was stored by an earlier call
}

// ErrBusy is returned when a call did not get its turn in time. It had no effect.
var ErrBusy = errors.New("busy")

// ErrStale is returned when the scope has seen a higher epoch; see [StaleError].
var ErrStale = errors.New("stale epoch")

// StaleError is returned for a call under a superseded epoch.
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

// KeyReusedError is returned for a call whose key belongs to another request.
type KeyReusedError struct{ Scope, Key string }

func (e *KeyReusedError) Error() string {
	return fmt.Sprintf("httpfence: scope %q: key %q: %v", e.Scope, e.Key, ErrKeyReused)
}

// Unwrap returns [ErrKeyReused].
func (e *KeyReusedError) Unwrap() error { return ErrKeyReused }
