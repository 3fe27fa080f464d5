package shares

import (
	"fmt"
	"testing"
	"time"
)

// What docs/performance.md says of a group of 10,000 partitions and 100 members: one that joins gets
// a share from the others, the share of one that has gone goes to them, and nothing else moves.
func TestScaleOnlyAShareMovesInALargeGroup(t *testing.T) {
	t.Parallel()
	const partitions, members = 10_000, 100
	var names []string
	takes := make([]bool, members+1)
	for m := range members + 1 {
		names = append(names, fmt.Sprintf("member%03d", m))
		takes[m] = true
	}
	// share shares out what is held so, and says how many partitions move.
	share := func(what string, holds []int) (has []int, moves int) {
		t.Helper()
		n := len(holds)
		began := time.Now()
		has = Fair(names[:n], []Kind{{Name: "orders", Size: partitions, Takes: takes[:n], Holds: holds}})[0]
		for m := range has {
			moves += max(0, has[m]-holds[m])
		}
		t.Logf("%s: %d of %d partitions move, worked out in %v", what, moves, partitions, time.Since(began).Round(time.Microsecond))
		return has, moves
	}
	started, moves := share("100 members start", make([]int, members))
	if moves != partitions {
		t.Errorf("%d are taken at the start, want all", moves)
	}
	joined, moves := share("one joins 100", append(started, 0))
	if want := partitions / (members + 1); moves != want {
		t.Errorf("%d move to the one that joins, want %d", moves, want)
	}
	left := joined[members]
	if _, moves = share("one leaves 101", joined[:members]); moves != left {
		t.Errorf("%d move as one leaves, want the %d that it had", moves, left)
	}
	half := make([]int, members)
	copy(half, started[:members/2])
	if _, moves = share("half of 100 are replaced at once", half); moves != partitions/2 {
		t.Errorf("%d move as half of the members are replaced, want the half that those had", moves)
	}
}
