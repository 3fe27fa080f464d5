package epoch_test

import (
	"errors"
	"maps"
	"testing"

	"github.com/epochfence/epochfence/epoch"
)

func start(p epoch.Partition, next, earliest epoch.Offset) epoch.Start {
	return epoch.Start{Origin: epoch.Origin{Partition: p, Log: "log-1", Source: "source-1"},
		Next: epoch.Position{Offset: next, Mark: epoch.NoMark}, Earliest: epoch.Position{Offset: earliest, Mark: epoch.NoMark}}
}

func TestSeedRefusesTwoTopicsOrGroupsAndAddsNothing(t *testing.T) {
	for name, p := range map[string]epoch.Partition{
		"two topics": {Group: "billing", Topic: "payments"},
		"two groups": {Group: "shipping", Topic: "orders"},
	} {
		fs := epoch.Fences{}
		if err := fs.Seed([]epoch.Start{start(orders0, 0, 0), start(p, 0, 0)}); err == nil || len(fs) > 0 {
			t.Errorf("%s: err = %v, %d fences", name, err, len(fs))
		}
	}
}

func TestSeedOfNothingIsNothing(t *testing.T) {
	if err := (epoch.Fences{}).Seed(nil); err != nil {
		t.Error(err)
	}
}

func TestSeedLeavesAFenceThatExists(t *testing.T) {
	fs := epoch.Fences{orders0: {Origin: at, Epoch: 5, Claim: mine, Next: 9, Mark: 4}}
	before := maps.Clone(fs)
	if err := fs.Seed([]epoch.Start{{Origin: epoch.Origin{Partition: orders0, Log: "x", Source: "y"}, Next: epoch.Position{Offset: 1}, Earliest: epoch.Position{Offset: 2}}}); err != nil {
		t.Fatal(err)
	}
	if !maps.Equal(fs, before) {
		t.Errorf("fences %+v, want %+v", fs, before)
	}
}

func TestSeedAddsNothingWhileAFenceIsOfAnotherLog(t *testing.T) {
	for _, c := range []struct {
		name   string
		log    string // of the fence that exists
		starts []epoch.Start
		fails  bool
	}{
		{"the same log", "log-1", []epoch.Start{start(orders0, 0, 0), start(orders1, 0, 0)}, false},
		{"another log, and nothing is new", "log-0", []epoch.Start{start(orders0, 0, 0)}, false},
		{"another log", "log-0", []epoch.Start{start(orders0, 0, 0), start(orders1, 0, 0)}, true},
		{"another log, after the new partition", "log-0", []epoch.Start{start(orders1, 0, 0), start(orders0, 0, 0)}, true},
		{"another log, of a partition that is gone", "log-0", []epoch.Start{start(orders1, 0, 0)}, false},
	} {
		fs := epoch.Fences{orders0: {Origin: epoch.Origin{Partition: orders0, Log: c.log, Source: "source-1"}, Next: 9}}
		before := maps.Clone(fs)
		err := fs.Seed(c.starts)
		if errors.Is(err, epoch.ErrLogChanged) != c.fails || (err != nil) != c.fails || c.fails && !maps.Equal(fs, before) {
			t.Errorf("%s: err = %v, fences %+v", c.name, err, fs)
		}
	}
}

func TestClaimComparesWhatWasSeen(t *testing.T) {
	held := epoch.Fence{Origin: at, Epoch: 5, Claim: other, Next: 9}
	bid := epoch.Claim{Lease: epoch.Lease{Origin: at, Generation: 6}, ID: mine}
	for _, c := range []struct {
		name string
		seen func(f *epoch.Fence)
		ok   bool
	}{
		{"as it is", func(*epoch.Fence) {}, true},
		{"another position", func(f *epoch.Fence) { f.Next = 3 }, true},
		{"another epoch", func(f *epoch.Fence) { f.Epoch = 4 }, false},
		{"another claim", func(f *epoch.Fence) { f.Claim = mine }, false},
		{"not claimed", func(f *epoch.Fence) { f.Epoch, f.Claim = 0, epoch.ClaimID{} }, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			fs := epoch.Fences{orders0: held}
			seen := held
			c.seen(&seen)
			got, err := fs.Claim(seen, bid)
			if !c.ok {
				if want := (&epoch.StaleError{Partition: orders0, Ours: mine, Held: held}); !sameRefusal(err, want) {
					t.Errorf("err = %v, want %v", err, want)
				}
				if fs[orders0] != held {
					t.Errorf("the refused claim left %+v", fs[orders0])
				}
				return
			}
			if err != nil || got.Epoch != 6 || got.Next != 9 || fs[orders0] != got {
				t.Errorf("%+v, %v; the fence is %+v", got, err, fs[orders0])
			}
		})
	}
	if _, err := (epoch.Fences{}).Claim(held, bid); !sameRefusal(err, &epoch.MissingError{Partition: orders0}) {
		t.Errorf("without a fence: err = %v", err)
	}
}

func TestAdvanceRefusesAPartitionGivenTwice(t *testing.T) {
	fence := func(p epoch.Partition) epoch.Fence {
		return epoch.Fence{Origin: epoch.Origin{Partition: p}, Epoch: 5, Claim: mine}
	}
	for name, second := range map[string]epoch.Advance{
		"continuing from the first": {Partition: orders0, Claim: mine, From: 1, To: 2},
		"the same again":            {Partition: orders0, Claim: mine, From: 0, To: 1},
		"applying nothing":          {Partition: orders0, Claim: mine, From: 1, To: 1},
	} {
		fs := epoch.Fences{orders0: fence(orders0), orders1: fence(orders1)}
		before := maps.Clone(fs)
		err := fs.Advance([]epoch.Advance{
			{Partition: orders0, Claim: mine, From: 0, To: 1},
			{Partition: orders1, Claim: mine, From: 0, To: 1},
			second,
		})
		if err == nil || errors.Is(err, epoch.ErrMoved) || !maps.Equal(fs, before) {
			t.Errorf("%s: err = %v, fences %+v", name, err, fs)
		}
	}
}

func TestAdvanceIsAllOrNothingAndNamesTheFirstInKeyOrder(t *testing.T) {
	fence := func(p epoch.Partition, next epoch.Offset) epoch.Fence {
		return epoch.Fence{Origin: epoch.Origin{Partition: p}, Epoch: 5, Claim: mine, Next: next}
	}
	fs := epoch.Fences{orders0: fence(orders0, 0), orders1: fence(orders1, 7)}
	before := maps.Clone(fs)
	lost := epoch.Partition{Group: "billing", Topic: "orders", Number: 2}
	err := fs.Advance([]epoch.Advance{
		{Partition: lost, Claim: mine, From: 0, To: 1},
		{Partition: orders1, Claim: mine, From: 6, To: 8},
		{Partition: orders0, Claim: mine, From: 0, To: 1},
	})
	if want := (&epoch.MovedError{Partition: orders1, From: 6, Next: 7}); !sameRefusal(err, want) {
		t.Errorf("err = %v, want %v", err, want)
	}
	if !maps.Equal(fs, before) {
		t.Errorf("a refused transaction left %+v", fs)
	}
	if err := fs.Advance([]epoch.Advance{
		{Partition: orders1, Claim: mine, From: 7, To: 8},
		{Partition: orders0, Claim: mine, From: 0, To: 1},
	}); err != nil || fs[orders0].Next != 1 || fs[orders1].Next != 8 {
		t.Errorf("%v; fences %+v", err, fs)
	}
	if err := fs.Advance([]epoch.Advance{{Partition: lost, Claim: mine}}); !errors.Is(err, epoch.ErrMissing) {
		t.Errorf("err = %v, want ErrMissing", err)
	}
}
