package main

import (
	"fmt"
	"strings"

	"github.com/epochfence/epochfence/operate"
)

// This file words an entry of the audit log as one line.

// sentence tells a decision about a partition of a log.
func sentence(log string, d operate.Decision) string {
	owner, by, why := printable(d.Owner), printable(d.By), printable(d.Reason)
	from, to := placeIn(log, d.From), placeIn(log, d.To)
	switch d.Kind {
	case operate.DecidedClaim:
		return fmt.Sprintf("%s claimed it under epoch %d, at %s", owner, d.Epoch, to)
	case operate.DecidedStale:
		return fmt.Sprintf("REFUSED: %s tried to continue under epoch %d at %s: %s", owner, d.Epoch, from, why)
	case operate.DecidedHalt:
		return fmt.Sprintf("HALTED by %s at %s: %s", dash(owner), from, why)
	case operate.DecidedRecovery:
		return fmt.Sprintf("%s found it well again at %s: %s", dash(owner), from, why)
	case operate.DecidedLoss:
		return fmt.Sprintf("%s lost it at %s: %s", dash(owner), from, why)
	case operate.DecidedTick:
		return fmt.Sprintf("%s ran the tick of %s: %s", dash(owner), positionIn(log, d.From), why)
	case operate.DecidedHang, operate.DecidedOnFailureHang:
		return fmt.Sprintf("GIVEN UP by %s, %s: %s", dash(owner), hung(log, d), why)
	case operate.DecidedInDoubt:
		return fmt.Sprintf("%s was in doubt about a commit at %s; the next claim found %s: %s", owner, from, to, why)
	case operate.DecidedRewind, operate.DecidedSkip, operate.DecidedRebase:
		return fmt.Sprintf("%s: %s, from %s to %s: %s", by, d.Kind, from, positionIn(log, d.To), why)
	case operate.DecidedRun:
		return fmt.Sprintf("%s requested a run: %s", by, why)
	case operate.DecidedPause, operate.DecidedResume, operate.DecidedEvict:
		return fmt.Sprintf("%s: %s: %s", by, d.Kind, why)
	default:
		who := by
		if who == "" {
			who = owner
		}
		return strings.TrimSpace(fmt.Sprintf("%s: %s of the message at %s: %s", who, d.Kind, from, why))
	}
}

// hung names the hanging call by the offsets of its decision.
func hung(log string, d operate.Decision) string {
	switch {
	case d.From < 0:
		return "as a call hangs"
	case d.To == d.From+1:
		return fmt.Sprintf("as the message at %s hangs", placeIn(log, d.From))
	default:
		return fmt.Sprintf("as a message in [%s, %s) hangs", positionIn(log, d.From), positionIn(log, d.To))
	}
}
