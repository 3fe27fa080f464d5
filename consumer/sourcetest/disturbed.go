package sourcetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/epochfence/epochfence/consumer"
)

// attempts limits how often a history is played if its machine stands still.
const attempts = 4

// lostError is a story that ended early because a tenure ended, or that was too slow for one.
type lostError struct {
	error
	term time.Duration // of the tenure
}

func (g *grant) interrupted(format string, args ...any) {
	err := fmt.Errorf(format, args...)
	panic(failure{&lostError{fmt.Errorf("%w\n%s had ended: %w", err, g.name(), context.Cause(g.ctx)), g.Term()}})
}

// isLost reports whether the tenure was lost. The story may have meant it to be.
func (g *grant) isLost() bool {
	return g.ctx.Err() != nil && errors.Is(context.Cause(g.ctx), consumer.ErrLost) && !g.asked()
}

// fail ends the story over something that only this tenure could do.
func (g *grant) fail(format string, args ...any) {
	if g.isLost() {
		g.interrupted(format, args...)
	}
	g.p.w.fail(format, args...)
}

func (g *grant) check(err error, what string, args ...any) {
	if err != nil {
		g.fail("%s: %w", fmt.Sprintf(what, args...), err)
	}
}

// poll is [world.poll] for what needs this tenure: it ends with the tenure or the process.
func (g *grant) poll(what string, cond func() bool) {
	g.p.w.poll(what, func() bool {
		over := g.isLost()
		select {
		case <-g.p.ended:
			over = true
		default:
		}
		if cond() {
			return true
		}
		if over {
			g.interrupted("did not happen: %s", what)
		}
		return false
	})
}

// playAgain plays the history until the result says something about the source. A result says
// nothing if a tenure was lost while, as the harness reports, the machine stood still.
func (h history) playAgain(t testing.TB, create func(t testing.TB) Harness, patience time.Duration) error {
	for n := 1; ; n++ {
		harness := create(t)
		err := h.play(t, harness, patience)
		var lost *lostError
		stalls, ok := harness.(Stalling)
		if !ok || !errors.As(err, &lost) || n == attempts {
			return err
		}
		stood := stalls.Stalled()
		if stood < lost.term/4 {
			return err
		}
		t.Logf("played again, as the broker or this process stood still for %v: %v", stood.Round(time.Millisecond), err)
	}
}

func (w *world) lost() []*grant {
	w.mu.Lock()
	defer w.mu.Unlock()
	var lost []*grant
	for _, p := range w.processes {
		lost = append(lost, slices.DeleteFunc(slices.Clone(p.grants), func(g *grant) bool { return g.excused || !g.isLost() })...)
	}
	return lost
}

// because adds to a failed story the tenures that were lost meanwhile, which may be why it failed.
func because(err error, lost []*grant) error {
	var already *lostError
	if len(lost) == 0 || errors.As(err, &already) {
		return err
	}
	term := lost[0].Term()
	for _, g := range lost {
		term = min(term, g.Term())
		err = fmt.Errorf("%w\n%s was lost: %w", err, g.name(), context.Cause(g.ctx))
	}
	return &lostError{err, term}
}
