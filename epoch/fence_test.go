package epoch_test

import (
	"errors"
	"math"
	"testing"

	"github.com/epochfence/epochfence/epoch"
)

var (
	orders0 = epoch.Partition{Group: "billing", Topic: "orders", Number: 0}
	orders1 = epoch.Partition{Group: "billing", Topic: "orders", Number: 1}
	at      = epoch.Origin{Partition: orders0, Log: "log-1", Source: "source-1"}
	mine    = epoch.ClaimID{15: 1}
	other   = epoch.ClaimID{15: 2}
)

func TestCheckComparesLogAndSource(t *testing.T) {
	f := epoch.Fence{Origin: at, Owner: "A", Next: 7}
	for _, c := range []struct {
		name        string
		log, source string
		want        error
	}{
		{"both ours", "log-1", "source-1", nil},
		{"another log", "log-2", "source-1", &epoch.LogChangedError{Partition: orders0, Fence: "log-1", Source: "log-2", Next: 7}},
		{"another source", "log-1", "source-2", &epoch.ForeignLeaseError{Partition: orders0, Fence: "source-1", Source: "source-2", Owner: "A"}},
		{"another of both: the log first", "log-2", "source-2", &epoch.LogChangedError{Partition: orders0, Fence: "log-1", Source: "log-2", Next: 7}},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := f.Check(epoch.Origin{Partition: orders0, Log: c.log, Source: c.source})
			if !sameRefusal(err, c.want) {
				t.Errorf("err = %#v, want %#v", err, c.want)
			}
		})
	}
}

// sameRefusal compares the refusals themselves, not only their kind.
func sameRefusal(got, want error) bool {
	switch want := want.(type) {
	case *epoch.StaleError:
		var e *epoch.StaleError
		return errors.As(got, &e) && *e == *want
	case *epoch.MovedError:
		var e *epoch.MovedError
		return errors.As(got, &e) && *e == *want
	case *epoch.MissingError:
		var e *epoch.MissingError
		return errors.As(got, &e) && *e == *want
	case *epoch.LogChangedError:
		var e *epoch.LogChangedError
		return errors.As(got, &e) && *e == *want
	case *epoch.ForeignLeaseError:
		var e *epoch.ForeignLeaseError
		return errors.As(got, &e) && *e == *want
	}
	return errors.Is(got, want)
}

func TestClaimedGivesTheLeasesGenerationOrTheNextEpoch(t *testing.T) {
	for _, c := range []struct {
		name       string
		epoch      epoch.Epoch
		generation int64
		want       epoch.Epoch
	}{
		{"first claim", 0, 5, 5},
		{"first claim at generation 1", 0, 1, 1},
		{"a higher generation", 5, 6, 6},
		{"a far higher generation", 5, 1 << 40, 1 << 40},
		{"the highest generation within reach", 5, int64(epoch.MaxStep) + 6, epoch.MaxStep + 6},
		{"the highest generation of all", epoch.MaxAbove - 5, int64(epoch.MaxAbove) + 1, epoch.MaxAbove + 1},
		{"one after the highest generation", epoch.MaxAbove + 1, 1, epoch.MaxAbove + 2},
		{"a lower generation after the highest", epoch.MaxAbove + 5, int64(epoch.MaxAbove) + 2, epoch.MaxAbove + 6},
		{"the same generation", 5, 5, 6},
		{"a lower generation", 5, 1, 6},
		{"one after the last but one", math.MaxInt64 - 1, 1, math.MaxInt64},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := epoch.Fence{Origin: at, Generation: 3, Owner: "A", Epoch: c.epoch, Claim: other, Next: 9, Mark: 4}
			got, err := before.Claimed(epoch.Claim{Lease: epoch.Lease{Origin: at, Generation: c.generation, Owner: "B"}, ID: mine})
			if err != nil {
				t.Fatal(err)
			}
			want := epoch.Fence{Origin: at, Generation: c.generation, Owner: "B", Epoch: c.want, Claim: mine, Next: 9, Mark: 4}
			if got != want {
				t.Errorf("fence\n%+v, want\n%+v", got, want)
			}
		})
	}
}

// A sink that has lost its last claims continues above what others have seen of them.
func TestClaimedGivesAnEpochAboveTheOneThatTheClaimNames(t *testing.T) {
	for _, c := range []struct {
		epoch, above epoch.Epoch
		generation   int64
		want         epoch.Epoch
	}{
		{5, 9, 6, 10}, {5, 9, 10, 10}, {5, 9, 12, 12}, {5, 5, 1, 6}, {5, 4, 1, 6}, {0, 7, 1, 8}, {5, 5 + epoch.MaxStep, 1, 6 + epoch.MaxStep}, {epoch.MaxAbove - 1, epoch.MaxAbove, 1, epoch.MaxAbove + 1}, {5, -1, 1, 6},
	} {
		got, err := epoch.Fence{Origin: at, Epoch: c.epoch, Claim: other}.Claimed(epoch.Claim{Lease: epoch.Lease{Origin: at, Generation: c.generation}, ID: mine, Above: c.above})
		if err != nil || got.Epoch != c.want || got.Generation != c.generation {
			t.Errorf("after %d, above %d, generation %d: %+v, %v, want epoch %d", c.epoch, c.above, c.generation, got, err, c.want)
		}
	}
}

func TestClaimedRefusesAndLeavesTheFence(t *testing.T) {
	good := epoch.Claim{Lease: epoch.Lease{Origin: at, Generation: 6}, ID: mine}
	held := epoch.Fence{Origin: at, Generation: 5, Epoch: 5, Claim: other, Next: 9}
	for _, c := range []struct {
		name string
		with func(f *epoch.Fence, c *epoch.Claim)
		want error // nil: any
	}{
		{"another partition", func(_ *epoch.Fence, c *epoch.Claim) { c.Partition = orders1 }, nil},
		{"the zero id", func(_ *epoch.Fence, c *epoch.Claim) { c.ID = epoch.ClaimID{} }, nil},
		{"the id in the fence", func(_ *epoch.Fence, c *epoch.Claim) { c.ID = other }, nil},
		{"generation 0", func(_ *epoch.Fence, c *epoch.Claim) { c.Generation = 0 }, epoch.ErrNoLease},
		{"a negative generation", func(_ *epoch.Fence, c *epoch.Claim) { c.Generation = math.MinInt64 }, epoch.ErrNoLease},
		{"another log", func(_ *epoch.Fence, c *epoch.Claim) { c.Log = "log-2" }, epoch.ErrLogChanged},
		{"another source", func(_ *epoch.Fence, c *epoch.Claim) { c.Source = "source-2" }, epoch.ErrForeignLease},
		{"no epoch left", func(f *epoch.Fence, _ *epoch.Claim) { f.Epoch = math.MaxInt64 }, nil},
		{"above the last epoch there is", func(_ *epoch.Fence, c *epoch.Claim) { c.Above = math.MaxInt64 }, nil},
		{"above an epoch that is too far away", func(_ *epoch.Fence, c *epoch.Claim) { c.Above = 6 + epoch.MaxStep }, nil},
		{"a generation that is too far away", func(_ *epoch.Fence, c *epoch.Claim) { c.Generation = int64(epoch.MaxStep) + 7 }, nil},
		{"above an epoch that is too high", func(f *epoch.Fence, c *epoch.Claim) { f.Epoch, c.Above = epoch.MaxAbove, epoch.MaxAbove+1 }, nil},
		{"a generation that is too high", func(f *epoch.Fence, c *epoch.Claim) { f.Epoch, c.Generation = epoch.MaxAbove, int64(epoch.MaxAbove)+2 }, nil},
		{"an operator's name", func(_ *epoch.Fence, c *epoch.Claim) { c.Owner = "operator anna" }, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			f, claim := held, good
			c.with(&f, &claim)
			got, err := f.Claimed(claim)
			if err == nil || c.want != nil && !errors.Is(err, c.want) {
				t.Errorf("err = %v, want %v", err, c.want)
			}
			if got != f {
				t.Errorf("the refused claim left %+v, want %+v", got, f)
			}
		})
	}
}

// What a group had applied before it had fences is adopted by the first claim of
// a fence and by no other.
func TestClaimedAdoptsAPositionOnce(t *testing.T) {
	adopting := epoch.Claim{Lease: epoch.Lease{Origin: at, Generation: 6}, ID: mine, Adopt: &epoch.Position{Offset: 3, Mark: 2}}
	seeded := epoch.Fence{Origin: at, Next: 9, Mark: 4}
	got, err := seeded.Claimed(adopting)
	if want := (epoch.Fence{Origin: at, Generation: 6, Epoch: 6, Claim: mine, Next: 3, Mark: 2, Applied: true}); err != nil || got != want {
		t.Errorf("%+v, %v; want %+v", got, err, want)
	}
	claimed := epoch.Fence{Origin: at, Epoch: 5, Claim: other, Next: 9}
	if got, err := claimed.Claimed(adopting); err == nil || got != claimed {
		t.Errorf("a fence that was claimed before: %+v, %v", got, err)
	}
	adopting.Adopt = &epoch.Position{Offset: -1}
	if got, err := seeded.Claimed(adopting); err == nil || got != seeded {
		t.Errorf("a negative offset: %+v, %v", got, err)
	}
}

func TestAdvanced(t *testing.T) {
	held := epoch.Fence{Origin: at, Epoch: 5, Claim: mine, Next: 9, Mark: 4}
	for _, c := range []struct {
		name string
		a    epoch.Advance
		want error // nil: none
		next epoch.Offset
		mark epoch.Mark
	}{
		{"some messages", epoch.Advance{Partition: orders0, Claim: mine, From: 9, To: 12, Mark: 6}, nil, 12, 6},
		{"to the last offset", epoch.Advance{Partition: orders0, Claim: mine, From: 9, To: math.MaxInt64, Mark: epoch.NoMark}, nil, math.MaxInt64, -1},
		{"no message keeps the mark", epoch.Advance{Partition: orders0, Claim: mine, From: 9, To: 9, Mark: 6}, nil, 9, 4},
		{"from below", epoch.Advance{Partition: orders0, Claim: mine, From: 8, To: 12}, &epoch.MovedError{Partition: orders0, From: 8, Next: 9}, 9, 4},
		{"from above", epoch.Advance{Partition: orders0, Claim: mine, From: 10, To: 12}, &epoch.MovedError{Partition: orders0, From: 10, Next: 9}, 9, 4},
		{"no message, from elsewhere", epoch.Advance{Partition: orders0, Claim: mine, From: 8, To: 8}, &epoch.MovedError{Partition: orders0, From: 8, Next: 9}, 9, 4},
		{"another claim", epoch.Advance{Partition: orders0, Claim: other, From: 9, To: 12}, &epoch.StaleError{Partition: orders0, Ours: other, Held: held}, 9, 4},
		{"another claim from elsewhere is stale first", epoch.Advance{Partition: orders0, Claim: other, From: 8, To: 12}, &epoch.StaleError{Partition: orders0, Ours: other, Held: held}, 9, 4},
		{"no claim", epoch.Advance{Partition: orders0, From: 9, To: 12}, &epoch.StaleError{Partition: orders0, Held: held}, 9, 4},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := held.Advanced(c.a)
			if !sameRefusal(err, c.want) {
				t.Fatalf("err = %v, want %v", err, c.want)
			}
			want := held
			want.Next, want.Mark, want.Applied = c.next, c.mark, c.next > held.Next
			if got != want {
				t.Errorf("fence\n%+v, want\n%+v", got, want)
			}
		})
	}
}

func TestAdvancedRefusesWhatNoCallerMeans(t *testing.T) {
	held := epoch.Fence{Origin: at, Epoch: 5, Claim: mine, Next: 9}
	for name, a := range map[string]epoch.Advance{
		"another partition": {Partition: orders1, Claim: mine, From: 9, To: 12},
		"backwards":         {Partition: orders0, Claim: mine, From: 9, To: 8},
	} {
		got, err := held.Advanced(a)
		if err == nil || got != held {
			t.Errorf("%s: err = %v, fence %+v", name, err, got)
		}
	}
	// An unclaimed fence carries the zero claim, and is nobody's.
	seeded := epoch.Fence{Origin: at, Next: 9}
	if _, err := seeded.Advanced(epoch.Advance{Partition: orders0, From: 9, To: 10}); !errors.Is(err, epoch.ErrStale) {
		t.Errorf("the zero claim on an unclaimed fence: err = %v, want ErrStale", err)
	}
}
