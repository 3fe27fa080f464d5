package httpfence

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/epochfence/epochfence/epoch"
)

// This file keeps epochs and answers in memory. admit decides here what transaction.go decides for
// SQL: a lower epoch is refused, and a key that is known gets its answer.

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
