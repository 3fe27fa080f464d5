package operate_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/operate"
)

// logged is an operator that has an audit log alone.
type logged struct {
	operate.Operator
	newest []operate.Decision // first
	asked  int
}

func (l *logged) History(_ context.Context, q operate.HistoryQuery) (found []operate.Decision, err error) {
	l.asked++
	for _, d := range l.newest {
		if slices.Contains(q.Kinds, d.Kind) && (q.Partition == nil || *q.Partition == d.Partition) && (q.Before == 0 || d.ID < q.Before) && len(found) < operate.Limit(q.Limit) {
			found = append(found, d)
		}
	}
	return found, nil
}

func TestAHaltHoldsUntilThePartitionIsClaimedOrMovesOrIsWellAgain(t *testing.T) {
	at := func(minute int) time.Time { return time.Date(2026, 1, 2, 3, minute, 0, 0, time.UTC) }
	p := func(n int32) epoch.Partition { return epoch.Partition{Group: "g", Topic: "t", Number: n} }
	held := func(n int32, claimed, advanced time.Time) operate.Partition {
		return operate.Partition{Fence: epoch.Fence{Origin: epoch.Origin{Partition: p(n)}}, ClaimedAt: claimed, AdvancedAt: advanced}
	}
	l := &logged{}
	decide := func(kind operate.DecisionKind, n int32, minute int) {
		d := operate.Decision{ID: int64(len(l.newest) + 1), Kind: kind, Partition: p(n), At: at(minute)}
		l.newest = slices.Insert(l.newest, 0, d)
	}
	decide(operate.DecidedHalt, 0, 10)     // and claimed at the same time, by its halting owner
	decide(operate.DecidedHalt, 1, 10)     // claimed since
	decide(operate.DecidedHalt, 2, 10)     // moved since
	decide(operate.DecidedHalt, 3, 10)     // well again
	decide(operate.DecidedRecovery, 3, 11) //
	decide(operate.DecidedRecovery, 4, 10) // and has halted after that
	decide(operate.DecidedHalt, 4, 11)     //
	decide(operate.DecidedHalt, 5, 11)     // before anybody could claim it
	for range 1000 {
		decide(operate.DecidedClaim, 1, 12)
	}
	for range 500 { // others' halts
		decide(operate.DecidedHalt, 7, 12)
	}
	ps := []operate.Partition{
		held(0, at(10), at(9)), held(1, at(12), at(9)), held(2, at(9), at(10)), held(3, at(9), at(9)),
		held(4, at(9), at(9)), held(5, time.Time{}, time.Time{}), held(6, at(9), at(9)),
	}
	found, err := operate.Halts(t.Context(), l, ps)
	if err != nil {
		t.Fatal(err)
	}
	for n, want := range []bool{true, false, false, false, true, true, false} {
		if got := found[p(int32(n))] != nil; got != want {
			t.Errorf("partition %d has halted: %v, want %v", n, got, want)
		}
		one, err := operate.Halts(t.Context(), l, ps[n:n+1])
		if err != nil || (one[p(int32(n))] != nil) != want {
			t.Errorf("partition %d alone has halted: %v, %v, want %v", n, one, err, want)
		}
	}

	l.asked = 0
	if _, err := operate.Halts(t.Context(), l, []operate.Partition{held(0, at(20), at(20)), held(1, at(20), at(20))}); err != nil || l.asked != 1 {
		t.Errorf("%v: what is older than all claims was asked for %d times", err, l.asked)
	}
}
