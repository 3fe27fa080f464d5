package memsink

import (
	"context"
	"errors"
	"sync"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/operate"
)

// This file puts the faults of a test between a process and its database. sink.go has the steps
// that they wrap.

// Hook stands between a process and one step in its database. It gets the subject of the step and
// the step itself, and returns in the step's place:
//
//	return do()                          // nothing wrong
//	<-thawed; return do()                // the process is frozen before the step
//	do(); return epoch.ErrInDoubt        // the step is taken, its answer lost
//	return epoch.ErrInDoubt              // the step never arrives
//	late = do; return epoch.ErrInDoubt   // the test calls late() when it likes: still in flight
//	return errors.New("out of stock")    // refused
//	return epoch.ErrTransient            // refused, for a reason that passes
//	return epoch.ErrUnhealthy            // refused, for a reason that somebody has to fix
//
// The step runs at most once, on the goroutine that calls do. A second call of do is an error, and
// so is a hook that returns nil without a call. ctx is the caller's, and is checked before the hook
// is called: a step that a hook holds back counts as sent, and takes effect even after ctx has
// ended. Several goroutines may call a hook at a time.
type Hook[T any] func(ctx context.Context, about T, do func() error) error

// Hooks are the faults of one sink. A nil hook runs the step.
type Hooks struct {
	Fence Hook[epoch.Partition]
	Seed  Hook[[]epoch.Start]

	// Look stands before the reads with which a consumer watches partitions that have nothing to
	// commit.
	Look Hook[[]epoch.Partition]

	// Claim stands before the swap: a process frozen here has confirmed.
	Claim Hook[epoch.Claim]

	// Commit stands between the handler and the fence: a process frozen here
	// has its transaction open.
	Commit Hook[[]epoch.Advance]

	// CommitHeld is Commit for a transaction that moves no position.
	CommitHeld Hook[epoch.Hold]

	// Record stands before a consumer's writes to the audit log, Hangs before its reads of what
	// hung, and Requests before its polls for the requests of operators.
	Record   Hook[[]operate.Decision]
	Hangs    Hook[epoch.Partition]
	Requests Hook[[]epoch.Partition]

	Alive Hook[operate.Process]
}

// Script replaces the hooks of this sink, for steps that begin from now on. Other sinks on the same
// database keep theirs.
func (s *Sink) Script(h Hooks) { s.hooks.Store(&h) }

func (s *Sink) hook() Hooks {
	if h := s.hooks.Load(); h != nil {
		return *h
	}
	return Hooks{}
}

// run checks ctx before the hook only, so that a process frozen beyond its deadline does its worst
// when it thaws.
func run[T any](ctx context.Context, hook Hook[T], about T, step func() error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if hook == nil {
		return step()
	}
	var (
		mu     sync.Mutex
		taken  bool
		result error
	)
	err := hook(ctx, about, func() error {
		mu.Lock()
		defer mu.Unlock()
		if taken {
			return errors.New("the hook took the step twice")
		}
		taken = true
		result = step()
		return result
	})
	if err != nil {
		return err
	}
	mu.Lock()
	defer mu.Unlock()
	if !taken {
		return errors.New("the hook returned nil without taking the step")
	}
	return result // a hook cannot turn a refusal into a success
}
