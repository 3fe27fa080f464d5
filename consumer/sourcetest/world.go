package sourcetest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/epochfence/epochfence/consumer"
)

// group is the one that a history's processes are in unless it says otherwise.
// Topics are never used twice, and names are made unique by them.
const group = "g"

// world is what one history happens in.
type world struct {
	Harness
	t        testing.TB
	ctx      context.Context // ends when patience does
	patience time.Duration

	mu         sync.Mutex
	processes  []*process
	violations []error // of what holds in every history
	clock      int     // counts what was noted
	changed    chan struct{}
}

// fail ends the story.
func (w *world) fail(format string, args ...any) {
	panic(failure{fmt.Errorf(format, args...)})
}

func (w *world) check(err error, what string, args ...any) {
	if err != nil {
		w.fail("%s: %w", fmt.Sprintf(what, args...), err)
	}
}

// note changes something under the lock and wakes those who await.
func (w *world) note(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.clock++
	f()
	if w.changed != nil {
		close(w.changed)
		w.changed = nil
	}
}

// await waits until cond, which is called under the lock, is true of what was
// noted. It fails the story when patience ends, or when something was noted
// that must never be.
func (w *world) await(what string, cond func() bool) {
	for {
		w.mu.Lock()
		if w.changed == nil {
			w.changed = make(chan struct{})
		}
		changed, ok, bad := w.changed, cond(), len(w.violations) > 0
		w.mu.Unlock()
		switch {
		case bad:
			w.fail("which was found while waiting for this: %s", what) // end reports it
		case ok:
			return
		}
		select {
		case <-changed:
		case <-w.ctx.Done():
			w.fail("did not happen within %v: %s", w.patience, what)
		}
	}
}

// poll is await for what nobody notes: it looks again from time to time.
func (w *world) poll(what string, cond func() bool) {
	ticker := time.NewTicker(5 * time.Millisecond)
	defer ticker.Stop()
	for !cond() {
		select {
		case <-ticker.C:
		case <-w.ctx.Done():
			w.fail("did not happen within %v: %s", w.patience, what)
		}
	}
}

// moment passes soon: it is for what must not happen, as nothing tells that it
// will not. It is shorter than a drain of g may take.
func moment(g *grant) <-chan time.Time {
	return time.After(min(200*time.Millisecond, g.Term()/4))
}

// never waits a moment for what must not happen.
func (w *world) never(g *grant, what string, happened <-chan struct{}) {
	select {
	case <-happened:
		w.fail("must not happen: %s", what)
	case <-moment(g):
	}
}

// end stops what still runs and reports what was wrong at any time.
func (w *world) end() error {
	ctx, cancel := context.WithTimeout(context.Background(), w.patience)
	defer cancel()
	w.mu.Lock()
	processes := w.processes
	w.mu.Unlock()
	for _, p := range processes {
		p.thaw()
	}
	for _, p := range processes {
		p.stop()
		p.follow()
	}
	var errs []error
	for _, p := range processes {
		select {
		case <-p.ended:
			if p.err != nil && !p.mayFail {
				errs = append(errs, fmt.Errorf("Run of %s: %w", p.name, p.err))
			}
		case <-ctx.Done():
			errs = append(errs, fmt.Errorf("Run of %s has not returned %v after it was told to", p.name, w.patience))
		}
	}
	w.leaveNothing(ctx, processes)
	w.mu.Lock()
	defer w.mu.Unlock()
	return errors.Join(append(w.violations, errs...)...)
}

// leaveNothing lets every own return that a broken source has left running.
func (w *world) leaveNothing(ctx context.Context, processes []*process) {
	for _, p := range processes {
		p.giveAll()
		for _, g := range w.grantsOf(p) {
			select {
			case <-g.done:
			case <-ctx.Done():
			}
		}
	}
}

func (w *world) newTopic(partitions int32) string { return w.NewTopic(w.t, partitions) }

// produce appends messages with the values given.
func (w *world) produce(topic string, n int32, values ...string) {
	ms := make([]consumer.Message, len(values))
	for i, v := range values {
		ms[i].Value = []byte(v)
	}
	w.Produce(w.t, topic, n, ms...)
}

// numbered returns values that tell where they belong.
func numbered(n int32, from, to int) []string {
	var vs []string
	for i := from; i < to; i++ {
		vs = append(vs, fmt.Sprintf("%d:%04d", n, i))
	}
	return vs
}
