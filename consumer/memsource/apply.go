package memsource

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
)

// This file applies a log once, for tests of handlers. Everything else in the package is for tests
// of takeovers.

// Apply applies all messages of the log with h, as one process of the group [DefaultGroup]. It is
// for tests of handlers on the database that they write to.
//
// Apply returns the error with which a partition halts, such as that of a message that fails for
// good without an OnFailure, or the last error before ctx ends. Messages have as many attempts as
// usual, within milliseconds. Nothing is logged. What was applied stays applied; Apply may be
// called again.
func Apply[TX any](ctx context.Context, log *Log, sink epoch.Sink[TX], h consumer.Handlers[TX]) error {
	group := log.Group(DefaultGroup)
	running, stop := context.WithCancel(log.UntilApplied(ctx))
	defer stop()
	var t trouble
	err := consumer.Run(running, group.Member("test"), sink, h, consumer.Options{
		RetryMin: time.Millisecond, RetryMax: 10 * time.Millisecond, HaltMin: time.Minute, HaltMax: time.Minute, // nobody waits that long: a halt ends Apply
		Logger: slog.New(slog.DiscardHandler),
		Observe: func(e consumer.Event) {
			if t.observe(e) {
				stop()
			}
		},
	})
	switch {
	case err != nil:
		return err
	case group.isApplied():
		return nil
	case t.last != nil:
		return fmt.Errorf("memsource: %s is not applied: %w", log.Name(), t.last)
	default:
		return fmt.Errorf("memsource: %s is not applied: %w", log.Name(), context.Cause(ctx))
	}
}

type trouble struct {
	mu   sync.Mutex
	last error
}

func (t *trouble) observe(e consumer.Event) (halted bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch e := e.(type) {
	case consumer.Halted:
		t.last = e.Err
		return true
	case consumer.Retried:
		t.last = e.Err
	case consumer.InDoubt:
		t.last = e.Err
	}
	return false
}

func (g *Group) isApplied() bool {
	g.broker.mu.Lock()
	defer g.broker.mu.Unlock()
	return g.applied()
}
