package sourcetest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"reflect"
	"runtime/debug"
	"slices"
	"testing"
	"time"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/internal/suites/bubble"
)

// patience is how long a history waits for anything that has to happen.
const patience = 2 * time.Minute

// Run plays every history that the harness allows. It calls create once to see what the harness can
// do, and then once for each history.
func Run(t *testing.T, create func(t testing.TB) Harness) {
	playAll(t, create(t), func(t *testing.T, h history) { h.playOn(t, create) })
}

// RunParallel is [Run] with the histories beside each other, as many as tests run in parallel.
// Histories that look at the whole process come first, one at a time. What create returns must have
// a broker of its own, or groups of its own on a shared broker.
func RunParallel(t *testing.T, create func(t testing.TB) Harness) {
	playAll(t, create(t), func(t *testing.T, h history) {
		if !h.alone {
			t.Parallel()
		}
		h.playOn(t, create)
	})
}

// RunInBubble is [Run] with every history in a testing/synctest bubble. It calls create inside.
func RunInBubble(t *testing.T, create func(t testing.TB) Harness) {
	var probe Harness
	bubble.Test(t, func(t *testing.T) { probe = create(t) })
	playAll(t, probe, func(t *testing.T, h history) {
		bubble.Test(t, func(t *testing.T) { h.playOn(t, create) })
	})
}

func playAll(t *testing.T, probe Harness, play func(t *testing.T, h history)) {
	for _, h := range histories() {
		if missing := h.missing(probe); missing != "" {
			t.Logf("not played, as the harness is no %s: %s", missing, h.claim)
			continue
		}
		t.Run(h.claim, func(t *testing.T) { play(t, h) })
	}
}

// history is one claim about sources and the story that shows it.
type history struct {
	claim string
	rules string // of the design that it bears on
	needs []need
	alone bool // it looks at the heap or the goroutines of the process
	story func(w *world)
}

func histories() []history {
	var all []history
	for _, hs := range [][]history{granting, losing, confirming, reading, carrying, misfits, starting, publishing, resources, systems, attacks} {
		all = append(all, hs...)
	}
	return all
}

type need struct {
	name string
	met  func(Harness) bool
}

func needs[A any]() need {
	return need{reflect.TypeFor[A]().Name(), func(h Harness) bool { _, ok := h.(A); return ok }}
}

// ofLogs is met by the harness of a source that reads a log.
var ofLogs = need{"reader of logs", func(h Harness) bool { _, ok := h.(Timetable); return !ok }}

func (h history) missing(harness Harness) string {
	for _, n := range h.needs {
		if !n.met(harness) {
			return n.name
		}
	}
	return ""
}

func (h history) playOn(t *testing.T, create func(t testing.TB) Harness) {
	if err := h.playAgain(t, create, patience); err != nil {
		t.Errorf("%v\nwhich bears on: %s", err, cmp.Or(h.rules, "the contract of consumer.Source"))
	}
}

// failure ends a story. It is no failed test, so that the suite can be tried on broken sources.
type failure struct{ err error }

// play tells the story and returns what was wrong. Harnesses report their own problems through t.
func (h history) play(t testing.TB, harness Harness, patience time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	w := &world{t: t, Harness: harness, ctx: ctx, patience: patience}
	failed := w.play(h.story)
	lost := w.lost() // before the end, which takes everything back
	err := w.end()
	switch {
	case failed == nil:
		return err
	case err != nil:
		return fmt.Errorf("%w\n%s", err, because(failed, lost).Error()) // distinguished from what was lost
	}
	return because(failed, lost)
}

func (w *world) play(story func(w *world)) (err error) {
	defer func() {
		switch v := recover().(type) {
		case nil:
		case failure:
			err = v.err
		default:
			err = fmt.Errorf("panic: %v\n%s", v, debug.Stack())
		}
	}()
	story(w)
	return nil
}

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
