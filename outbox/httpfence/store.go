package httpfence

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/epochfence/epochfence/epoch"
)

// This file has what a store of epochs and answers must do, its errors, and the store in memory, where
// admit decides what it decides in transaction.go for SQL. handler.go calls it.

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

// Memory is a [Store] in the memory of the process, for tests and for receivers whose effects are
// lost with the process too. It keeps each answer, of up to Options.MaxAnswer and 64 KiB of
// headers, until [Memory.Forget], and each scope forever. It cannot undo what effects write. It is
// safe for concurrent use. Create it with [NewMemory].
type Memory struct {
	locks locks

	mu      sync.Mutex
	highest map[string]epoch.Epoch
	answers map[memoryKey]memoryAnswer
}

type memoryKey struct{ scope, key string }

type memoryAnswer struct {
	Answer
	fingerprint Fingerprint
	stored      time.Time
}

// NewMemory returns an empty store.
func NewMemory() *Memory {
	return &Memory{highest: map[string]epoch.Epoch{}, answers: map[memoryKey]memoryAnswer{}}
}

// Serve implements [Store].
func (m *Memory) Serve(ctx context.Context, c Call, f Fingerprint, effect func(context.Context) (Answer, bool)) (Reply, error) {
	leave, err := m.locks.enter(ctx, c.Scope)
	if err != nil {
		return Reply{}, fmt.Errorf("httpfence: scope %q: %w", c.Scope, err)
	}
	defer leave()
	known, err := m.admit(c, f)
	if err != nil {
		return Reply{}, err
	}
	if known != nil {
		return Reply{Answer: known.Answer, Replayed: true}, nil
	}
	a, keep := effect(context.WithoutCancel(ctx))
	if keep {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.answers[memoryKey{c.Scope, c.Key}] = memoryAnswer{a, f, time.Now()}
	}
	return Reply{Answer: a}, nil
}

func (m *Memory) admit(c Call, f Fingerprint) (*memoryAnswer, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if h := m.highest[c.Scope]; h > c.Epoch {
		return nil, &StaleError{Scope: c.Scope, Epoch: c.Epoch, Highest: h}
	}
	known, ok := m.answers[memoryKey{c.Scope, c.Key}]
	if ok && known.fingerprint != f {
		return nil, &KeyReusedError{Scope: c.Scope, Key: c.Key}
	}
	m.highest[c.Scope] = c.Epoch
	if !ok {
		return nil, nil
	}
	return &known, nil
}

// ForgetAbove lowers the highest epoch of a scope. See [SQLStore.ForgetAbove].
func (m *Memory) ForgetAbove(ctx context.Context, scope string, to epoch.Epoch) error {
	leave, err := m.locks.enter(ctx, scope)
	if err != nil {
		return fmt.Errorf("httpfence: lower the highest epoch of scope %q to %d: %w", scope, to, err)
	}
	defer leave()
	m.mu.Lock()
	defer m.mu.Unlock()
	if to <= 0 || m.highest[scope] <= to {
		return fmt.Errorf("httpfence: lower the highest epoch of scope %q to %d: %w", scope, to, errNotAbove)
	}
	m.highest[scope] = to
	return nil
}

// Forget deletes the answers that were stored longer than age ago, and returns their number. See
// [SQLStore.Forget].
func (m *Memory) Forget(_ context.Context, age time.Duration) (int64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var n int64
	for k, a := range m.answers {
		if time.Since(a.stored) > age {
			delete(m.answers, k)
			n++
		}
	}
	return n, nil
}
