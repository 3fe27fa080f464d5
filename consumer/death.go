package consumer

import (
	"context"
	"errors"
	"fmt"

	"github.com/epochfence/epochfence/epoch"
)

// death is a transaction with a single message that was in doubt.
type death struct {
	trial trial
	err   error
}

// deathsError is the failure of a message that was in doubt so many times in a row.
type deathsError struct {
	times int
	last  error
}

func (e *deathsError) Error() string {
	if errors.Is(e.last, epoch.ErrMoved) {
		return fmt.Sprintf("%d transactions in a row with this message alone found that the position had moved, and it had not: does its handler move it? %v", e.times, e.last)
	}
	return fmt.Sprintf("%d transactions in a row with this message alone lost their connection, while one without it committed: %v", e.times, e.last)
}

// Unwrap shows what the last one ended with, but not that it was in doubt: nothing is.
func (e *deathsError) Unwrap() error { return &maskedError{e.last} }

// settleDeath judges the last death, now that the partition is claimed again, as got. seen
// is the fence before that, and left the one under which the message died.
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
		o.tellFailed(v, in, 0)
	case halt:
		o.bisect.halted()
		o.given = &outcome{action: halt, err: v.err}
	}
}

// wasAlone reports whether nothing but the message can have been why it died. A database
// that was not there at once may be, and so may somebody else who has claimed the partition
// or acted on it, which ends the connection of the transaction under way.
func (o *ownership[TX]) wasAlone(left, seen epoch.Fence) bool {
	return o.attempts == 0 && seen.Claim == left.Claim && seen.Next == left.Next
}

// commits reports whether a transaction like that of the message, but without it, commits.
func (o *ownership[TX]) commits(ctx context.Context, f epoch.Fence) bool {
	stay := epoch.Advance{Partition: f.Partition, Claim: f.Claim, From: f.Next, To: f.Next, Mark: f.Mark}
	return o.run.sink.Commit(ctx, []epoch.Advance{stay}, func(context.Context, TX) error { return nil }) == nil
}
