package consumer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/operate"
)

// This file decides which messages have hung before, in any process: an owner that gives its partition
// up records the message in the sink's audit log, and the next owner reads it after its claim.
// abandon.go tries such messages alone.

// recordHang writes what hangs. The partition is this process's until recordHang has returned.
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

// recallHangs reads which messages have hung in other processes. If the audit log cannot be read,
// the partition continues with what this process knows: a hang would then be found once more.
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
