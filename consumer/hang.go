package consumer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/epochfence/epochfence/epoch"
)

// This file decides when a call hangs, lists the calls that do, and ends Run when there are too
// many (L7). abandon.go and background.go decide what becomes of their partitions.

// Function is the user's function that hangs.
type Function uint8

// The functions.
const (
	FunctionHandler    Function = iota // that of [Each] or [Batches]
	FunctionOnFailure                  // that of [Handlers.OnFailure]
	FunctionReplay                     // the handler, for a dead letter that is replayed
	FunctionBackground                 // that of [Handlers.Background], or the apply of [Background.Do]
	FunctionSink                       // no function of the user's, but a method of the sink
)

// String returns a word of a-z and underscores.
func (f Function) String() string {
	names := [...]string{"handler", "on_failure", "replay", "background", "sink"}
	if int(f) >= len(names) {
		return fmt.Sprintf("Function(%d)", int(f))
	}
	return names[f]
}

var errHung = errors.New("a call did not return after its context had ended, and was abandoned")

type hungError struct{ call Overdue }

func (e *hungError) Error() string { return e.call.String() }
func (e *hungError) Unwrap() error { return errHung }

// HungError is returned by [Run] when calls of the user's functions hang: they did not return after
// their contexts had ended, and were abandoned. Nothing that they still do is committed,
// unless it is the sink that hangs (FunctionSink). Only the end of the process ends their goroutines, so exit and restart it.
type HungError struct {
	Calls []Overdue // by partition; at least one
}

// Error returns a line for each call, and the stack of its goroutine.
func (e *HungError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "consumer: %d calls hang and were abandoned; restart the process, and pass each call's context to what it waits for", len(e.Calls))
	for _, c := range e.Calls {
		fmt.Fprintf(&b, "\n%s", c)
		if c.Stack != "" {
			fmt.Fprintf(&b, "\n%s", c.Stack)
		}
	}
	return b.String()
}

// String returns a line that begins with the partition: what hangs, for how long by now, and where.
func (o Overdue) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: ", o.Partition)
	switch o.Function {
	case FunctionOnFailure:
		b.WriteString("OnFailure hangs")
	case FunctionReplay:
		b.WriteString("the handler of a dead letter hangs")
	case FunctionBackground:
		b.WriteString("the background work hangs")
	case FunctionSink:
		b.WriteString("the sink hangs")
	default:
		b.WriteString("the handler hangs")
	}
	if o.Offset >= 0 {
		fmt.Fprintf(&b, " on the message at offset %d", o.Offset)
	}
	fmt.Fprintf(&b, ", epoch %d, for %v", o.Epoch, time.Since(o.Since).Round(time.Second))
	if at := frameOf(o.Stack); at != "" {
		fmt.Fprintf(&b, ", in %s", at)
	}
	return b.String()
}

// hang is a call that was abandoned and has not returned. Go cannot end a goroutine, so the call
// may keep what it holds for as long as it likes: memory, locks of the process, connections that
// are not the sink's.
type hang struct {
	Overdue
	goroutine string
	returned  chan struct{}
	line      *time.Timer   // of the next line in the log
	lines     time.Duration // until the one after that
}

// hangs holds the hanging calls of one Run, and the messages that calls hung on.
type hangs struct {
	most int

	mu       sync.Mutex
	open     map[*hang]struct{}
	tooMany  []Overdue // the calls at the time when they became too many
	messages map[epoch.Partition]hungMessage
	over     bool // Run has returned
}

// hungMessage is a message that a call hung on, or the messages in [first, last], one of which
// hangs.
type hungMessage struct {
	first, last epoch.Offset
	attempts    int   // if it is a single message
	failed      error // why OnFailure was called for it, if it was OnFailure that hung
	recorded    bool  // the sink's audit log has the last hang
}

func newHangs(most int) *hangs {
	return &hangs{most: most, open: map[*hang]struct{}{}, messages: map[epoch.Partition]hungMessage{}}
}

// of returns the call that hangs for a partition, or nil. While there is one, this process does not
// claim the partition: the message would hang another goroutine.
func (hs *hangs) of(p epoch.Partition) *hang {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	for h := range hs.open {
		if h.Partition == p {
			return h
		}
	}
	return nil
}

// add records a hanging call, and reports once that there are too many.
func (hs *hangs) add(h *hang) (tooMany bool) {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	hs.open[h] = struct{}{}
	if len(hs.open) <= hs.most || hs.tooMany != nil {
		return false
	}
	hs.tooMany = hs.calls()
	return true
}

// call returns the report of a hang. Its stack may be replaced at any time, so it is copied under
// the lock.
func (hs *hangs) call(h *hang) Overdue {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	return h.Overdue
}

func (hs *hangs) calls() []Overdue {
	var calls []Overdue
	for h := range hs.open {
		calls = append(calls, h.Overdue)
	}
	slices.SortFunc(calls, func(a, b Overdue) int {
		return cmp.Or(a.Partition.Compare(b.Partition), cmp.Compare(a.Function, b.Function))
	})
	return calls
}

// remove reports whether Run still runs. After Run has returned, it must not call the user's
// Observe or Logger any more.
func (hs *hangs) remove(h *hang) (running bool) {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	delete(hs.open, h)
	if h.line != nil {
		h.line.Stop()
	}
	return !hs.over
}

// close ends the list, and returns the error of Run if calls hang, or if there were too many at one
// time. The latter counts even if they have all returned by now: Run was stopped because of them.
func (hs *hangs) close() error {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	hs.over = true
	for h := range hs.open {
		if h.line != nil {
			h.line.Stop()
		}
	}
	calls := hs.calls()
	if len(calls) == 0 {
		calls = hs.tooMany
	}
	if len(calls) == 0 {
		return nil
	}
	return &HungError{calls}
}

// blame records that a call hangs on messages. For a single message, that is a failed attempt.
func (hs *hangs) blame(p epoch.Partition, m hungMessage) {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	if was := hs.messages[p]; m.first == m.last && was.first == m.first && was.last == m.last {
		m.attempts = max(m.attempts, was.attempts)
	}
	if m.first == m.last {
		m.attempts++
	}
	hs.messages[p] = m
}

// message returns the message that a call for the partition has hung on, if one is remembered.
func (hs *hangs) message(p epoch.Partition) (hungMessage, bool) {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	m, ok := hs.messages[p]
	return m, ok
}

// forget drops the message, which is applied.
func (hs *hangs) forget(p epoch.Partition) {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	delete(hs.messages, p)
}

const (
	// overrunGrace is how long a call may still take when its partition was not drained in time.
	overrunGrace = time.Second

	// firstHungLine and lastHungLine bound the wait between log lines about a hang. It doubles.
	firstHungLine = time.Minute
	lastHungLine  = 10 * time.Minute
)

var errTooManyHang = errors.New("too many calls hang")

// hangs reports a call that is being abandoned. The call hangs until returned is called.
func (r *runner[TX]) hangs(o Overdue, goroutine string) *hang {
	h := &hang{Overdue: o, goroutine: goroutine, returned: make(chan struct{}), lines: firstHungLine}
	tooMany := r.hung.add(h)
	r.Observe(o)
	r.life.changed()
	r.sayItHangs(h)
	if tooMany {
		r.Logger.Error("more calls hang than Options.MaxHung allows; stopping", "max_hung", r.MaxHung)
		r.stop(errTooManyHang)
	}
	return h
}

// sayItHangs logs a hang again and again for as long as it lasts (L7), with the present stack: the
// call may be blocked elsewhere by now.
func (r *runner[TX]) sayItHangs(h *hang) {
	r.hung.mu.Lock()
	defer r.hung.mu.Unlock()
	if _, open := r.hung.open[h]; !open || r.hung.over {
		return
	}
	about := []any{"function", h.Function, "epoch", h.Epoch, "for", time.Since(h.Since).Round(time.Second), "in", frameOf(h.Stack), "stack", h.Stack}
	if h.Offset >= 0 {
		about = append([]any{"offset", h.Offset}, about...)
	}
	text := "a call hangs and was abandoned: it does not return although its context has ended; the partition is given up until it does"
	if h.Function == FunctionSink {
		text = "a call of the sink hangs and was abandoned: it does not return although its context has ended; the outcome is in doubt"
	}
	r.log(h.Partition).Error(text, about...)
	h.line = time.AfterFunc(h.lines, func() {
		stack := stackOf(h.goroutine)
		r.hung.mu.Lock()
		h.Stack = stack // it may be blocked elsewhere by now
		r.hung.mu.Unlock()
		r.sayItHangs(h)
	})
	h.lines = min(2*h.lines, lastHungLine)
}

// returned records that an abandoned call has returned after all. The source may grant the
// partition to this process again.
func (r *runner[TX]) returned(h *hang) {
	running := r.hung.remove(h)
	if running {
		r.life.changed()
		took := time.Since(h.Since)
		r.log(h.Partition).Info("a call that hung has returned", "function", h.Function, "epoch", h.Epoch, "took", took.Round(time.Millisecond))
		r.Observe(Returned{Partition: h.Partition, Epoch: h.Epoch, Function: h.Function, Took: took})
	}
	close(h.returned)
}

// lateness calls then when a call runs on long after its context has ended, freezes not counted.
type lateness struct {
	then    func()
	unwatch func() bool

	mu      sync.Mutex
	stopped bool
	counts  []*awake
}

func newLateness(then func()) *lateness { return &lateness{then: then} }

// afterEnd calls then, on its own goroutine, once this process has run for d since the end of ctx.
func afterEnd(ctx context.Context, d time.Duration, then func()) *lateness {
	l := newLateness(then)
	l.unwatch = context.AfterFunc(ctx, func() { l.within(d) })
	return l
}

// within makes l call then after d at the latest.
func (l *lateness) within(d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.stopped {
		l.counts = append(l.counts, afterAwake(d, l.then))
	}
}

// stop ends the measurement. then may still be running, and must not matter any more.
func (l *lateness) stop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stopped = true
	if l.unwatch != nil {
		l.unwatch()
	}
	for _, a := range l.counts {
		a.stop()
	}
}
