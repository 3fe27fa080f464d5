package consumer

import (
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/epochfence/epochfence/epoch"
)

// This file decides what becomes of a transaction that runs on long after its context has ended
// (L7): which partition is given up, and how the message at hand is tried again. hang.go measures
// the time and lists the calls; recall.go passes the message on to the next owner.

// underCall is the running call of a transaction: its index plus 1, 0 for none, or noCall.
type underCall struct{ n atomic.Int64 }

const noCall = -1

// enter reports whether the call may begin. None may after the transaction was abandoned.
func (u *underCall) enter(call int) bool { return u.n.CompareAndSwap(0, int64(call)+1) }

func (u *underCall) leave(call int) { u.n.CompareAndSwap(int64(call)+1, 0) }

// running reports whether a call is under way. Between two calls, and once finish or abandon was
// called, it is false.
func (u *underCall) running() bool { return u.n.Load() > 0 }

// finish marks the transaction as over: nothing of the user's runs in it any more, so a deadline
// that passes later abandons nothing.
func (u *underCall) finish() { u.n.Store(noCall) }

// abandon stops further calls and returns the one under way, or a negative number. open reports
// whether the transaction was neither finished nor abandoned before.
func (u *underCall) abandon() (call int, open bool) {
	n := u.n.Swap(noCall)
	return int(n) - 1, n != noCall
}

// abandon settles the partitions of a transaction that runs on long after its context has ended.
// The partition whose call hangs is given up. The others continue, because none of their handlers
// runs. If no call is under way, the sink hangs, and only a new claim shows what is committed.
func (l *loop[TX]) abandon(t *transaction[TX], stack string) {
	if t.over {
		return
	}
	t.over = true
	// Whatever the call does from here on, its transaction cannot commit: the sink refuses it once
	// the context given to WithAbandonment has ended, which t.abandon does below.
	call, _ := t.under.abandon()
	is := call >= 0
	at, o := -1, t.overdue(0)
	o.Function, o.Stack = FunctionSink, stack
	if is {
		at = t.placed[call].part
		o = t.hangsAt(at, t.placed[call].at)
		o.Stack = stack
	}
	h := l.run.hangs(o, t.goroutine)
	t.hang.Store(h)
	t.abandon()
	t.release()
	took := time.Since(t.began)
	r := result{err: &hungError{o}, called: true, batch: max(at, 0), timedOut: true, took: took, handling: took, handler: errHung}
	if !is {
		r.err = fmt.Errorf("%w: %w", epoch.ErrInDoubt, r.err)
	}
	trials := t.trials()
	l.run.Observe(transacted(trials, r))
	switch {
	case t.replay != nil:
		l.abandonedReplay(t, h, r)
		return
	case t.shared:
		l.shared.busy = false
	default:
		l.alone.busy = false
	}
	for i, did := range t.parts {
		p := did.pending
		if trials[i].lost || i == at {
			p.caught.Store(true)
		}
		switch {
		// Whether the sink has committed is unknown, for all partitions alike.
		case !is:
			p.finish(outcome{action: claimAgain, err: r.err})
		// The message at fault is remembered before the partition is given up: its next owner tries
		// it alone.
		case i == at:
			l.blame(did, t.placed[call].at, trials[i])
			p.finish(outcome{action: abandon, hang: h})
		default:
			l.again(p, 0)
		}
	}
}

// hangsAt describes the call that hangs: of the part with index of, on the message with index at.
// For a call with all messages of a part, at is -1, and the first message stands for it.
func (t *transaction[TX]) hangsAt(of, at int) Overdue {
	o, part := t.overdue(of), t.parts[of]
	if len(part.messages) > 0 {
		o.Offset = part.messages[max(at, 0)].Offset
	}
	switch {
	case t.replay != nil:
		o.Function = FunctionReplay
	case part.failed != nil:
		o.Function = FunctionOnFailure
	}
	return o
}

// blame remembers which message a call hangs on, so that the next transaction tries it alone. If
// the call has all messages of a part, the whole range is remembered: any of them may be the one.
// The attempts that the first message had before the hang still count.
func (l *loop[TX]) blame(did part[TX], at int, t trial) {
	ms := did.messages
	if len(ms) == 0 {
		return
	}
	m := hungMessage{first: ms[0].Offset, last: ms[len(ms)-1].Offset, failed: did.failed}
	if at >= 0 {
		m.first, m.last = ms[at].Offset, ms[at].Offset
	}
	if m.first == t.first && did.failed == nil {
		m.attempts = t.attempts
	}
	l.run.hung.blame(did.advance.Partition, m)
}

// abandonedReplay settles a replay that hangs. The dead letter stays a dead letter, and its replay
// has failed: it would hang the next owner, too. The partition is given up like any other with a
// hung call.
func (l *loop[TX]) abandonedReplay(t *transaction[TX], h *hang, r result) {
	p := t.parts[0].pending
	delete(l.replays.over(p).tries, t.replay.ID)
	l.reportReplay(t, replayFailed, r)
	l.recordFailure(t, r)
	if l.holds(p) {
		p.claim.breakWith(outcome{action: abandon, hang: h})
		return
	}
	p.hungReplay = h // the tenure is about to end
	p.handBack()
}

// recall retries messages that calls have hung on, each alone, as their next attempt. It returns an
// error if a message has used up its attempts.
func (p *pending[TX]) recall() error {
	if !p.hung {
		return nil
	}
	hung := p.run.hung
	m, ok := hung.message(p.partition)
	if !ok || m.last < p.fence.Next {
		hung.forget(p.partition)
		p.hung = false
		return nil
	}
	before, within := 0, 0
	for _, message := range p.batch.Messages {
		if message.Offset < m.first {
			before++
		} else if message.Offset <= m.last {
			within++
		}
	}
	switch {
	case within == 0: // not in this batch
		return nil
	case m.first < m.last: // it is unknown which one hangs
		p.bisect.alone(before + within)
		return nil
	case before > 0:
		if !p.bisect.active() {
			p.bisect.narrow(before+1, before)
		}
		return nil
	}
	p.bisect.alone(1)
	p.bisect.first, p.bisect.attempts = m.first, max(p.bisect.attempts, m.attempts)
	failure := &HandlerError{Partition: p.partition, Offset: m.first, Attempts: p.bisect.attempts, Err: errHung}
	policy := p.run.policy
	switch {
	case p.bisect.failed != nil:
	case m.failed != nil: // it was OnFailure that hung
		return p.halts(&onFailureError{m.failed, errHung})
	case p.bisect.attempts < policy.maxAttempts:
	case !policy.onFailure:
		return p.halts(failure)
	default:
		p.trouble(slog.LevelError, "message failed for good, passing it to OnFailure", failure, "offset", m.first, "attempt", failure.Attempts)
		p.bisect.attempts, p.bisect.failed = 0, failure
	}
	return nil //nolint:nilerr // the failure is OnFailure's to take
}

// halts keeps the record of the message, so that the partition stays halted until an operator lets
// it continue. The message would hang the next process, too.
func (p *pending[TX]) halts(err error) error {
	p.bisect.halted()
	return fmt.Errorf("%w; the message is tried again once an operator has paused and resumed the partition", err)
}
