package consumer

import (
	"context"
	"errors"
	"fmt"

	"github.com/epochfence/epochfence/epoch"
)

// This file decides whether a message alone has caused a transaction in doubt: whether the fence
// was still ours and whether the database commits without the message. verdict.go decides how often
// that must happen before it counts as a failed attempt.

// death is a transaction with a single message that was in doubt.
type death struct {
	trial trial
	err   error
}

// deathsError is the failure of a message that has ended so many transactions without an answer
// that it counts as the cause.
type deathsError struct {
	times int
	last  error
}

func (e *deathsError) Error() string {
	if errors.Is(e.last, epoch.ErrMoved) || errors.Is(e.last, epoch.ErrStale) {
		return fmt.Sprintf("%d transactions in a row with this message alone were refused because the fence had another claim or position, and after each rollback it had the old one again: does the handler of this message write to the fence? %v", e.times, e.last)
	}
	return fmt.Sprintf("%d transactions in a row with this message alone lost their connection, while one without it committed: %v", e.times, e.last)
}

// Unwrap hides that the last transaction was in doubt: its outcome is known by now.
func (e *deathsError) Unwrap() error { return &maskedError{e.last} }

// settleDeath classifies the last death after the partition was claimed again, as got. seen is the
// fence that this claim replaced. left is the fence under which the message died.
func (o *ownership[TX]) settleDeath(ctx context.Context, left, seen, got epoch.Fence) {
	d := o.death
	if d == nil {
		return
	}
	o.death = nil
	if !o.wasAlone(left, seen) || o.bisect.deaths >= enoughDeaths && !o.commits(ctx, got) {
		o.bisect.deaths = 0
		return
	}
	v := o.run.policy.died(d.trial, o.bisect.deaths, d.err)
	in := o.bisect.learn(v, d.trial, false, false)
	switch v.action {
	case retry:
		o.reportFailed(v, in, 0)
	case halt:
		o.bisect.halted()
		o.given = &outcome{action: halt, err: v.err}
	}
}

// wasAlone reports whether only the message can have caused the death. Other causes are a database
// that was unavailable right after it, and another process or an operator that claimed or changed
// the partition, which ends the connection of the transaction under way.
func (o *ownership[TX]) wasAlone(left, seen epoch.Fence) bool {
	return o.attempts == 0 && seen.Claim == left.Claim && seen.Next == left.Next
}

// commits reports whether the same transaction commits without the message.
func (o *ownership[TX]) commits(ctx context.Context, f epoch.Fence) bool {
	stay := epoch.Advance{Partition: f.Partition, Claim: f.Claim, From: f.Next, To: f.Next, Mark: f.Mark}
	return o.run.sink.Commit(ctx, []epoch.Advance{stay}, epoch.TxOptions{}, func(context.Context, TX) error { return nil }) == nil
}
