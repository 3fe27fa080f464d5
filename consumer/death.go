package consumer

import (
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
	return fmt.Sprintf("%d transactions in a row with this message alone lost their connection, while the database served others: %v", e.times, e.last)
}

// Unwrap shows what the last one ended with, but not that it was in doubt: nothing is.
func (e *deathsError) Unwrap() error { return &maskedError{e.last} }

// settleDeath judges the last death, now that the partition is claimed again. seen is the
// fence before the claim. It proves nothing about the message if the database was not there
// at once, or if somebody else has claimed the partition or acted on it, which ends the
// connection of the transaction under way.
func (o *ownership[TX]) settleDeath(seen epoch.Fence) {
	d := o.death
	if d == nil {
		return
	}
	o.death = nil
	if o.attempts > 0 || seen.Claim != o.fence.Claim || seen.Next != o.fence.Next {
		o.bisect.deaths = 0
		return
	}
	v := o.run.policy.died(d.trial, o.bisect.deaths, d.err)
	in := o.bisect.learn(v, d.trial, false, false)
	switch v.action {
	case retry:
		o.report(v, in, 0)
	case halt:
		o.bisect.halted()
		o.given = &outcome{action: halt, err: v.err}
	}
}
