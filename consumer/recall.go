package consumer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/operate"
)

// A message that hangs counts as an attempt, whichever process it hangs in: an owner that
// gives its partition up writes to the sink's audit log which message hangs, and the next
// one reads that when it has claimed the partition.

// recordHang writes what hangs. The partition is this process's until it has returned.
func (o *ownership[TX]) recordHang() {
	call, f := o.run.hung.call(o.hang), o.fence
	d := operate.Decision{
		Kind: operate.DecidedHang, Partition: o.partition, Epoch: f.Epoch, Claim: f.Claim, Owner: f.Owner,
		From: -1, To: -1, Reason: "given up: " + call.String(),
	}
	m, ok := o.run.hung.message(o.partition)
	if !ok || call.Function != FunctionHandler && call.Function != FunctionOnFailure {
		o.run.recorder.addNow(d)
		return
	}
	d.From, d.To = m.first, m.last+1
	if m.failed != nil {
		d.Kind = operate.DecidedOnFailureHang
		d.Reason += fmt.Sprintf("; it was called because %v", m.failed)
	}
	if o.run.recorder.addNow(d) {
		o.run.hung.recorded(o.partition)
	}
}

// recallHangs reads what has hung on the messages from the position on.
func (o *ownership[TX]) recallHangs(ctx context.Context) {
	if o.run.operable == nil {
		return
	}
	log, err := o.run.operable.Hangs(ctx, o.partition)
	switch {
	case err == nil:
		o.hung = o.run.hung.learn(o.partition, log, o.fence.Next)
	case o.running(o.lease):
		o.trouble(slog.LevelWarn, "cannot read which messages have hung; counting what this process knows", err)
	}
}

// recorded notes that the audit log has the last hang of the partition.
func (hs *hangs) recorded(p epoch.Partition) {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	m := hs.messages[p]
	m.recorded = true
	hs.messages[p] = m
}

// learn takes in what an audit log says about a partition that is at next. It reports
// whether a message there has hung.
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

// exists tells it from the zero value, which stands for no message.
func (m hungMessage) exists() bool { return m.attempts > 0 || m.first < m.last }

func (m hungMessage) hasRangeOf(n hungMessage) bool {
	return m.exists() && n.exists() && m.first == n.first && m.last == n.last
}

// recalled is what is known of the messages from next on, by what this process knew and by
// the decisions of [operate.Operable.Hangs]. What this process knew and the log has is not
// believed if the log does not have it any more: an operator has let the partition continue.
// Its attempts may be more than those in the log, which has no failures but hangs.
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
