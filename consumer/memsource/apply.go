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

// Apply has h applied to the messages of the log until it is through with all of them, as
// one process of the group [DefaultGroup]: to test handlers on the database that they
// write to.
//
// The error is what kept them from it: that of a message that fails for good where h has
// no OnFailure, after as many attempts as usual, or of whatever is still failing when ctx
// ends. Attempts follow each other within milliseconds, and nothing is logged. What was
// applied before stays applied; Apply may be called again.
func Apply[TX any](ctx context.Context, log *Log, sink epoch.Sink[TX], h consumer.Handlers[TX]) error {
	group := log.Group(DefaultGroup)
	running, stop := context.WithCancel(log.UntilApplied(ctx))
	defer stop()
	var t trouble
	err := consumer.Run(running, group.Member("test"), sink, h, consumer.Options{
		RetryMin: time.Millisecond, RetryMax: 10 * time.Millisecond, HaltMin: time.Minute, HaltMax: time.Minute, // nobody waits that long: a halt ends it
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

// trouble is what last kept a message from being applied.
type trouble struct {
	mu   sync.Mutex
	last error
}

// observe reports whether there is no use in going on.
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
