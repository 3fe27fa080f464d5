package consumer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/operate"
)

// This file remembers which messages have hung before, in any process, and decides how they are tried again:
// alone. An owner that gives its partition up records the message in the sink's audit log, and the next owner
// reads it after its claim.

// hungMessage is a message that a call hung on, or the messages in [first, last], one of which
// hangs.
type hungMessage struct {
	first, last epoch.Offset
	attempts    int   // if it is a single message
	failed      error // why OnFailure was called for it, if it was OnFailure that hung
	recorded    bool  // the sink's audit log has the last hang
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

// blame remembers which message a call hangs on, so that the next transaction tries it alone. If
// the call has all messages of a part, the whole range is remembered: any of them may be the one.
// The attempts that the first message had before the hang still count.
func (p *partition) blame(a answer) {
	ms, t, at := a.part.messages, a.tried[a.of], a.place.at
	if len(ms) == 0 {
		return
	}
	m := hungMessage{first: ms[0].Offset, last: ms[len(ms)-1].Offset, failed: a.part.failed}
	if at >= 0 {
		m.first, m.last = ms[at].Offset, ms[at].Offset
	}
	if m.first == t.first && m.failed == nil {
		m.attempts = t.attempts
	}
	p.run.hung.blame(p.id, m)
}

// recall retries messages that calls have hung on, each alone, as their next attempt. It returns an
// error if a message has used up its attempts.
func (p *partition) recall() error {
	if !p.hung {
		return nil
	}
	hung := p.run.hung
	m, ok := hung.message(p.id)
	if !ok || m.last < p.fence.Next {
		hung.forget(p.id)
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
	failure := &HandlerError{Partition: p.id, Offset: m.first, Attempts: p.bisect.attempts, Err: errHung}
	policy := p.run.policy
	switch {
	case p.bisect.failed != nil:
	case m.failed != nil: // it was OnFailure that hung
		return p.haltedBy(&onFailureError{m.failed, errHung})
	case p.bisect.attempts < policy.maxAttempts:
	case !policy.onFailure:
		return p.haltedBy(failure)
	default:
		p.trouble(slog.LevelError, "message failed for good, passing it to OnFailure", failure, "offset", m.first, "attempt", failure.Attempts)
		p.bisect.attempts, p.bisect.failed = 0, failure
	}
	return nil //nolint:nilerr // the failure is OnFailure's to take
}

// haltedBy keeps the record of the message, so that the partition stays halted until an operator lets
// it continue. The message would hang the next process, too.
func (p *partition) haltedBy(err error) error {
	p.bisect.halted()
	return fmt.Errorf("%w; the message is tried again once an operator has paused and resumed the partition", err)
}

// recordHang writes what hangs. The partition is this process's until recordHang has returned.
func (p *partition) recordHang() {
	call, f := p.run.hung.call(p.hang), p.fence
	d := operate.Decision{
		Kind: operate.DecidedHang, Partition: p.id, Epoch: f.Epoch, Claim: f.Claim, Owner: f.Owner,
		From: -1, To: -1, Reason: "given up: " + call.String(),
	}
	m, ok := p.run.hung.message(p.id)
	if !ok || call.Function != FunctionHandler && call.Function != FunctionOnFailure {
		p.run.recorder.AddNow(d)
		return
	}
	d.From, d.To = m.first, m.last+1
	if m.failed != nil {
		d.Kind = operate.DecidedOnFailureHang
		d.Reason += fmt.Sprintf("; it was called because %v", m.failed)
	}
	if p.run.recorder.AddNow(d) {
		p.run.hung.recorded(p.id)
	}
}

// recallHangs reads which messages have hung in other processes. If the audit log cannot be read,
// the partition continues with what this process knows: a hang would then be found once more.
func (p *partition) recallHangs(ctx context.Context) {
	if p.run.records == nil {
		return
	}
	log, err := p.run.records.Hangs(ctx, p.id)
	switch {
	case err == nil:
		p.hung = p.run.hung.learn(p.id, log, p.fence.Next)
	case p.running(p.lease):
		p.trouble(slog.LevelWarn, "cannot read which messages have hung; counting what this process knows", err)
	}
}

// recorded notes that the audit log has the last hang of a partition. From then on the log is the
// truth: if it no longer has the hang, an operator has allowed another try.
func (hs *hangs) recorded(p epoch.Partition) {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	m := hs.messages[p]
	m.recorded = true
	hs.messages[p] = m
}

// learn takes over an audit log, and reports whether a message at or above next has hung.
func (hs *hangs) learn(p epoch.Partition, log []operate.Decision, next epoch.Offset) bool {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	m := recalled(hs.messages[p], log, next)
	if !m.exists() {
		delete(hs.messages, p)
		return false
	}
	hs.messages[p] = m
	return true
}

// exists reports whether m is of a message: the zero value is none.
func (m hungMessage) exists() bool { return m.attempts > 0 || m.first < m.last }

// hasRangeOf reports whether m and n are of the same message, or the same range.
func (m hungMessage) hasRangeOf(n hungMessage) bool {
	return m.exists() && n.exists() && m.first == n.first && m.last == n.last
}

// recalled combines what this process knows of the messages from next on with the decisions of
// [operate.Records.Hangs]. If the log had what this process knows and no longer has it, an
// operator has let the partition continue, and recalled drops it. This process may know of more
// attempts, because the log has no failures other than hangs.
func recalled(known hungMessage, log []operate.Decision, next epoch.Offset) hungMessage {
	var newest hungMessage
	for _, d := range log {
		if d.From < 0 || d.To <= next { // of no message, or of one that is applied
			continue
		}
		m := hungMessage{first: d.From, last: d.To - 1, recorded: true}
		if d.Kind == operate.DecidedOnFailureHang {
			m.failed = errors.New(d.Reason)
		}
		if m.first == m.last {
			m.attempts = 1
		}
		if !newest.exists() {
			newest = m
			continue
		}
		if !newest.hasRangeOf(m) {
			break
		}
		newest.attempts += m.attempts
	}
	if newest.hasRangeOf(known) {
		newest.attempts = max(newest.attempts, known.attempts)
		known.attempts = newest.attempts
	}
	if known.exists() && !known.recorded {
		return known
	}
	return newest
}
