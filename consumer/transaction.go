package consumer

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/operate"
)

// This file runs one transaction: what the sink and the handlers are called with, and for how long
// they may take. loop.go decides what goes into it, and verdict.go what its result means.

// transaction applies messages of one or more partitions. It knows the loop only as of its begin.
type transaction[TX any] struct {
	run      *runner[TX]
	parts    []part[TX]
	shared   bool
	timeout  time.Duration
	lockWait time.Duration
	replay   *replay // set for the replay of a dead letter

	// Set as it begins.
	began     time.Time
	goroutine string
	placed    []placedCall[TX]
	abandon   context.CancelFunc // ends it although a call may never return
	release   func()             // makes Run no longer wait for it

	under underCall
	over  bool // the loop's: its partitions are settled
	hang  atomic.Pointer[hang]
}

// part is what a transaction takes of one partition. It copies what it needs, because pending
// belongs to the loop and may be handed back while an abandoned transaction still runs.
type part[TX any] struct {
	pending  *pending[TX]
	lost     context.Context
	messages []Message
	advance  epoch.Advance
	epoch    epoch.Epoch
	failed   error // if set, OnFailure is called instead of the handler
}

func newPart[TX any](p *pending[TX], n int) part[TX] {
	to, ms := p.batch.Position(n), p.batch.Messages[:n]
	for i := range ms {
		ms[i].Under = p.under
	}
	return part[TX]{
		pending: p, lost: p.lease, messages: ms, epoch: p.fence.Epoch, failed: p.bisect.failed,
		advance: epoch.Advance{Partition: p.fence.Partition, Claim: p.fence.Claim, From: p.fence.Next, To: to.Offset, Mark: to.Mark},
	}
}

var errTimeout = errors.New("transaction took longer than BatchTimeout")

// start runs a transaction on its own goroutine, which a handler may end.
func (l *loop[TX]) start(t *transaction[TX]) {
	l.run.running.Add(1)
	t.release = sync.OnceFunc(l.run.running.Done)
	go func() {
		defer t.release()
		r := result{at: -1, err: errGoexit, handler: errGoexit}
		defer func() {
			settled := l.send(ended[TX]{t, r})
			if h := t.hang.Load(); !settled && h != nil {
				l.run.returned(h)
			}
		}()
		t.commit(l, &r)
	}()
}

// ended handles the end of a transaction. One that was abandoned has been settled before: its
// result is only looked at for a handler that ended the transaction by itself.
func (l *loop[TX]) ended(t *transaction[TX], r result) {
	if t.over {
		if errors.Is(r.err, epoch.ErrTxEndedByHandler) { // before it was abandoned
			for _, p := range t.parts {
				l.run.endedTx(p.advance.Partition, r.err)
			}
		}
		l.run.returned(t.hang.Load())
		return
	}
	t.over = true
	if t.replay != nil {
		l.finishedReplay(t, r)
	} else {
		l.finished(t, r)
	}
}

// commit runs the transaction and stores the result in r. If a handler ends this goroutine, the
// sink has rolled back, and r is as it was then.
func (t *transaction[TX]) commit(l *loop[TX], r *result) {
	t.began, t.goroutine = time.Now(), goroutineName()
	abandoned, abandon := context.WithCancel(context.Background())
	defer abandon()
	t.abandon = abandon
	ctx, cancel := context.WithCancelCause(t.withValues(l.base))
	defer cancel(nil)
	// R12: the sink gives up with the context, and the database by its own timeouts.
	ctx, done := context.WithTimeoutCause(ctx, t.timeout, errTimeout)
	defer done()
	overdue := afterEnd(ctx, t.run.hangTimeout(t.timeout), func() {
		stack := stackOf(t.goroutine)
		l.send(late[TX]{t, stack})
	})
	defer overdue.stop()
	overrun := newLateness(func() {
		if t.under.running() {
			overdue.then()
		}
	})
	defer overrun.stop()
	advances := make([]epoch.Advance, len(t.parts))
	for i, p := range t.parts {
		advances[i] = p.advance
		// One lost partition aborts all: R13 leaves no time to separate them.
		stop := context.AfterFunc(p.lost, func() {
			cancel(context.Cause(p.lost))
			if errors.Is(context.Cause(p.lost), ErrDrainOverrun) {
				overrun.within(overrunGrace)
			}
		})
		defer stop()
	}
	// A freeze may cost the transaction its connection or its time, which is then no message's
	// fault (L2).
	watch := afterAwake(2*t.timeout, func() {})
	defer watch.stop()
	// While Run ends, operators see what it waits for.
	defer t.run.underWay.add(t.overdue(0), len(t.parts)-1)()

	defer func() { r.took = time.Since(t.began) }()
	calls := t.calls(r)
	t.placed = calls
	do := make([]func(context.Context, TX) error, len(calls))
	for i := range calls {
		do[i] = calls[i].do
	}
	// The sink compares the fences after all calls, right before COMMIT (R4).
	r.err = t.run.sink.Commit(ctx, advances, epoch.TxOptions{LockWait: t.lockWait, Abandoned: abandoned}, do...)
	r.at, r.handler, r.limit = -1, nil, t.timeout
	for i := range calls {
		if calls[i].began {
			r.reached, r.cut = place{calls[i].part, calls[i].at}, i < len(calls)-1
		}
		if calls[i].failed != nil {
			r.batch, r.at, r.handler = calls[i].part, calls[i].at, calls[i].failed
		}
	}
	// The sink may know better than the handler's return value which call failed: a handler may
	// hide an error of its transaction, and return nil.
	if c, ok := errors.AsType[*epoch.CallError](r.err); ok && c.Call >= 0 && c.Call < len(calls) {
		r.batch, r.at, r.handler = calls[c.Call].part, calls[c.Call].at, c.Err
	}
	// A commit cannot have begun while calls were left, so the message that was reached is the one
	// to suspect.
	r.cut = r.cut && r.handler == nil
	if ms := t.parts[r.batch].messages; r.handler != nil && len(ms) > 0 {
		r.offset = ms[max(r.at, 0)].Offset
	}
	r.handler = operate.InTrace(r.handler, operate.TraceOf(r.err))
	r.froze = watch.stop()
	r.timedOut = r.err != nil && errors.Is(context.Cause(ctx), errTimeout)
}

// withValues puts the fence and the commit into the trace of the first message.
func (t *transaction[TX]) withValues(ctx context.Context) context.Context {
	for _, p := range t.parts {
		if len(p.messages) > 0 {
			return withValues(ctx, p.messages[0])
		}
	}
	return ctx
}

// placedCall is a call with its place: the part it belongs to, and whether it has begun.
type placedCall[TX any] struct {
	call[TX]
	part   int
	began  bool
	failed error // what the user's function returned, or how it ended
}

// calls returns the calls of all parts. While they run, r names the current one: it may Goexit.
func (t *transaction[TX]) calls(r *result) []placedCall[TX] {
	var calls []placedCall[TX]
	for i, p := range t.parts {
		for _, c := range p.calls(t.run) {
			calls = append(calls, placedCall[TX]{call: c, part: i})
		}
	}
	if len(calls) == 0 { // only positions move
		calls = append(calls, placedCall[TX]{call: call[TX]{-1, func(context.Context, TX) error { return nil }}})
	}
	var began time.Time
	for i := range calls {
		c, do := &calls[i], calls[i].do
		c.do = func(ctx context.Context, tx TX) error {
			if i == 0 {
				r.called, began = true, time.Now()
			}
			r.batch, r.at, c.began = c.part, c.at, true
			if !t.under.enter(i) {
				return epoch.ErrAbandoned
			}
			defer t.under.leave(i)
			defer func() { r.handling = time.Since(began) }()
			if err := context.Cause(ctx); err != nil && i > 0 { // its time is up between two messages
				c.failed = err
			} else if c.failed = guard(func() error { return do(ctx, tx) }); c.failed == nil && t.replay != nil {
				return t.run.operable.Replayed(ctx, tx, t.replay.RequestedReplay, t.replay.under)
			}
			if c.failed != nil {
				return &maskedError{c.failed}
			}
			return nil
		}
	}
	return calls
}

// calls returns the calls that apply p's messages, or the call of OnFailure.
func (p part[TX]) calls(run *runner[TX]) []call[TX] {
	switch {
	case len(p.messages) == 0:
		return nil
	case p.failed != nil:
		m := p.messages[0]
		return []call[TX]{{0, func(ctx context.Context, tx TX) error {
			return run.handlers.onFailure(withValues(ctx, m), tx, m, p.epoch, p.failed)
		}}}
	default:
		return run.handlers.calls(p.messages, p.epoch)
	}
}

// trials returns what policy.judge needs to know of each partition, as of the end of the
// transaction.
func (t *transaction[TX]) trials() []trial {
	ts := make([]trial, len(t.parts))
	for i, p := range t.parts {
		ts[i] = trial{
			partition: p.advance.Partition, messages: len(p.messages),
			attempts: p.pending.bisect.attempts, failed: p.failed, lost: p.lost.Err() != nil, doubts: p.pending.bisect.doubts,
		}
		if len(p.messages) > 0 {
			ts[i].first = p.messages[0].Offset
		}
	}
	return ts
}

// messages returns how many messages the transaction has, of all partitions.
func (t *transaction[TX]) messages() int {
	n := 0
	for _, p := range t.parts {
		n += len(p.messages)
	}
	return n
}

func (t *transaction[TX]) String() string {
	var b strings.Builder
	b.WriteString("transaction of")
	for _, p := range t.parts {
		fmt.Fprintf(&b, " %s [%d, %d)", p.advance.Partition, p.advance.From, p.advance.To)
	}
	return b.String()
}

// overdue describes the transaction as it is reported if it does not end. What hangs in it is added
// later.
func (t *transaction[TX]) overdue(part int) Overdue {
	p := t.parts[part]
	return Overdue{
		Partition: p.advance.Partition, Epoch: p.epoch, From: p.advance.From, To: p.advance.To, Timeout: t.timeout,
		Offset: -1, Since: t.began,
	}
}
