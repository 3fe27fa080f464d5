package epoch_test

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/epochfence/epochfence/epoch"
)

// steps is a sink, and a candidate, that notes in which order it is called.
type steps struct {
	epoch.Sink[struct{}]
	fences epoch.Fences
	taken  []string
}

func (s *steps) Look(_ context.Context, ps []epoch.Partition) (epoch.Fences, error) {
	s.taken = append(s.taken, "read")
	return s.fences.Look(ps), nil
}

func (s *steps) Claim(_ context.Context, seen epoch.Fence, c epoch.Claim) (epoch.Fence, error) {
	s.taken = append(s.taken, "swap")
	return s.fences.Claim(seen, c)
}

func TestTakeOverReadsChecksConfirmsAndSwaps(t *testing.T) {
	o := epoch.Origin{Partition: epoch.Partition{Group: "g", Topic: "orders", Number: 3}, Log: "log", Source: "source"}
	held := epoch.Fence{Origin: o, Epoch: 7, Claim: epoch.NewClaimID(), Generation: 7, Next: 100}
	refused := errors.New("the group has another owner")
	paused := held
	paused.Pause.Mode = epoch.Paused
	elsewhere := held
	elsewhere.Log = "another log"
	for _, c := range []struct {
		name       string
		fence      *epoch.Fence // nil if there is none
		add        bool         // Candidate.Missing adds one
		generation int64
		confirmed  error
		meanwhile  bool // another claim comes after the read

		steps []string
		epoch epoch.Epoch
		err   error
	}{
		{name: "the lease is confirmed", fence: &held, generation: 9, steps: []string{"read", "confirm", "swap"}, epoch: 9},
		{name: "the source refuses", fence: &held, generation: 9, confirmed: refused, steps: []string{"read", "confirm"}, err: refused},
		{name: "another claim comes in between", fence: &held, generation: 9, meanwhile: true, steps: []string{"read", "confirm", "swap"}, err: epoch.ErrStale},
		{name: "the partition is paused", fence: &paused, generation: 9, steps: []string{"read"}, err: epoch.ErrPaused},
		{name: "the fence is of another log", fence: &elsewhere, generation: 9, steps: []string{"read"}, err: epoch.ErrLogChanged},
		{name: "there is no fence", generation: 9, steps: []string{"read"}, err: epoch.ErrMissing},
		{name: "there is no fence yet", add: true, generation: 9, steps: []string{"read", "add", "confirm", "swap"}, epoch: 9},
		{name: "a generation far above is limited", fence: &held, generation: 300 << 32, steps: []string{"read", "confirm", "swap"}, epoch: 7 + epoch.MaxStep},
		{name: "a generation that is as far above the last as before", fence: &epoch.Fence{Origin: o, Epoch: 299 << 32, Claim: epoch.NewClaimID()}, generation: 300 << 32, steps: []string{"read", "confirm", "swap"}, epoch: 300 << 32},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := &steps{fences: epoch.Fences{}}
			if c.fence != nil {
				s.fences[o.Partition] = *c.fence
			}
			by := epoch.Candidate{Origin: o, Confirm: func(_ context.Context, seen epoch.Fence) (epoch.Claim, error) {
				s.taken = append(s.taken, "confirm")
				if seen != s.fences[o.Partition] {
					t.Errorf("it was asked about %+v, and the fence is %+v", seen, s.fences[o.Partition])
				}
				if c.meanwhile {
					if _, err := s.fences.Claim(seen, epoch.NewClaim(epoch.Lease{Origin: o, Generation: 8})); err != nil {
						t.Error(err)
					}
				}
				return epoch.NewClaim(epoch.Lease{Origin: o, Generation: c.generation}), c.confirmed
			}}
			if c.add {
				by.Missing = func(context.Context) (epoch.Fence, error) {
					s.taken = append(s.taken, "add")
					s.fences[o.Partition] = epoch.Fence{Origin: o}
					return s.fences[o.Partition], nil
				}
			}
			got, seen, err := epoch.TakeOver(t.Context(), s, by)
			if !errors.Is(err, c.err) || got.Epoch != c.epoch {
				t.Errorf("epoch %d, %v; want epoch %d, %v", got.Epoch, err, c.epoch, c.err)
			}
			if !slices.Equal(s.taken, c.steps) {
				t.Errorf("the steps were %q, want %q", s.taken, c.steps)
			}
			if c.fence != nil && seen != *c.fence {
				t.Errorf("it says that it has seen %+v, want %+v", seen, *c.fence)
			}
		})
	}
}
