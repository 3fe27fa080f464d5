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

// group is the default group of a history's processes. Topics are new, and make its name unique.
const group = "g"

type world struct {
	Harness
	t        testing.TB
	ctx      context.Context // ends when patience does
	patience time.Duration

	mu         sync.Mutex
	processes  []*process
	violations []error // of what holds in every history
	clock      int
	changed    chan struct{}
}

func (w *world) fail(format string, args ...any) {
	panic(failure{fmt.Errorf(format, args...)})
}

func (w *world) must(ok bool, format string, args ...any) {
	if !ok {
		w.fail(format, args...)
	}
}

func (w *world) check(err error, what string, args ...any) {
	if err != nil {
		w.fail("%s: %w", fmt.Sprintf(what, args...), err)
	}
}

// note changes something under the lock and wakes all who await.
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

// await waits until cond is true. It calls cond under the lock, after each note. It fails the story
// when patience ends, or when there is a violation.
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

// poll is await for what nobody notes: it calls cond from time to time.
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

// moment is how long to wait for what must not happen. It is shorter than a drain of g may take.
func moment(g *grant) <-chan time.Time {
	return time.After(min(200*time.Millisecond, g.Term()/4))
}

func (w *world) never(g *grant, what string, happened <-chan struct{}) {
	select {
	case <-happened:
		w.fail("must not happen: %s", what)
	case <-moment(g):
	}
}

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

func (w *world) produce(topic string, n int32, values ...string) {
	ms := make([]consumer.Message, len(values))
	for i, v := range values {
		ms[i].Value = []byte(v)
	}
	w.Produce(w.t, topic, n, ms...)
}

// numbered returns values that name their partition and index.
func numbered(n int32, from, to int) []string {
	var vs []string
	for i := from; i < to; i++ {
		vs = append(vs, fmt.Sprintf("%d:%04d", n, i))
	}
	return vs
}
