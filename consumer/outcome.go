package consumer

import "github.com/epochfence/epochfence/epoch"

// outcome is what became of messages that were handed to a committer. The zero
// outcome is that all of them are applied.
type outcome struct {
	end   ending
	err   error
	stale *epoch.StaleError // if end is refused
	above epoch.Epoch       // if end is surpassed
}

type ending int

const (
	applied       ending = iota
	left                 // the partition was asked back or lost, and nothing is under way
	refused              // the fence belongs to another claim (R6)
	inDoubt              // what the sink holds is not known (R5)
	surpassed            // another system has seen a higher epoch than the claim's
	halted               // the partition cannot go on; nothing is in doubt
	haltedInDoubt        // neither can it go on, nor is known what the sink holds
	escaped              // the handler committed by itself; trying again would do so again
)
