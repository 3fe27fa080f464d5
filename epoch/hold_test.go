package epoch_test

import (
	"maps"
	"testing"

	"pgregory.net/rapid"

	"github.com/epochfence/epochfence/epoch"
)

func TestHoldsComparesTheClaimAndNoPosition(t *testing.T) {
	held := epoch.Fence{Origin: at, Epoch: 5, Claim: mine, Next: 9}
	seeded := epoch.Fence{Origin: at, Next: 9}
	for _, c := range []struct {
		name  string
		fence epoch.Fence
		claim epoch.ClaimID
		want  error
	}{
		{"its claim", held, mine, nil},
		{"another claim", held, other, &epoch.StaleError{Partition: orders0, Ours: other, Held: held}},
		{"no claim", held, epoch.ClaimID{}, &epoch.StaleError{Partition: orders0, Held: held}},
		{"no claim, of a fence that has none", seeded, epoch.ClaimID{}, &epoch.StaleError{Partition: orders0, Held: seeded}},
		{"a claim of a fence that has none", seeded, mine, &epoch.StaleError{Partition: orders0, Ours: mine, Held: seeded}},
	} {
		t.Run(c.name, func(t *testing.T) {
			fs := epoch.Fences{orders0: c.fence}
			for what, err := range map[string]error{
				"the fence":  c.fence.Holds(epoch.Hold{Partition: orders0, Claim: c.claim}),
				"the fences": fs.Hold(epoch.Hold{Partition: orders0, Claim: c.claim}),
			} {
				if !sameRefusal(err, c.want) {
					t.Errorf("%s: err = %v, want %v", what, err, c.want)
				}
			}
			if fs[orders0] != c.fence {
				t.Errorf("it left %+v, want %+v", fs[orders0], c.fence)
			}
		})
	}
}

func TestHoldsRefusesAnotherPartition(t *testing.T) {
	held := epoch.Fence{Origin: at, Epoch: 5, Claim: mine}
	err := held.Holds(epoch.Hold{Partition: orders1, Claim: mine})
	if err == nil || sameRefusal(err, epoch.ErrStale) {
		t.Errorf("the fence of another partition: err = %v, want one that is no refusal", err)
	}
	if err := (epoch.Fences{orders0: held}).Hold(epoch.Hold{Partition: orders1, Claim: mine}); !sameRefusal(err, &epoch.MissingError{Partition: orders1}) {
		t.Errorf("no fence of that partition: err = %v, want a MissingError", err)
	}
}

// A claim holds from its swap to the next one of its partition, whatever is
// advanced meanwhile, and never again; and it holds wherever it could advance.
func TestAClaimHoldsFromItsSwapToTheNextOne(t *testing.T) {
	partitions := []epoch.Partition{orders0, orders1}
	rapid.Check(t, func(t *rapid.T) {
		fs := epoch.Fences{}
		if err := fs.Seed([]epoch.Start{start(orders0, 0, 0), start(orders1, 0, 0)}); err != nil {
			t.Fatal(err)
		}
		claims := map[epoch.Partition][]epoch.ClaimID{} // in the order of their swaps
		t.Repeat(map[string]func(*rapid.T){
			"swap": func(t *rapid.T) {
				p := rapid.SampledFrom(partitions).Draw(t, "partition")
				seen := fs[p]
				c := epoch.NewClaim(epoch.Lease{Origin: seen.Origin, Generation: rapid.Int64Range(1, 8).Draw(t, "number")})
				if _, err := fs.Claim(seen, c); err != nil {
					t.Fatal(err)
				}
				claims[p] = append(claims[p], c.ID)
			},
			"advance": func(t *rapid.T) {
				f := fs[rapid.SampledFrom(partitions).Draw(t, "partition")]
				_ = fs.Advance([]epoch.Advance{{Partition: f.Partition, Claim: f.Claim, From: f.Next, To: f.Next + 1}}) // refused where nobody has claimed
			},
			"": func(t *rapid.T) {
				before := maps.Clone(fs)
				for _, p := range partitions {
					for i, id := range append([]epoch.ClaimID{{}}, claims[p]...) {
						err := fs.Hold(epoch.Hold{Partition: p, Claim: id})
						if last := i > 0 && i == len(claims[p]); (err == nil) != last {
							t.Fatalf("claim %d of %d of %s: %v", i, len(claims[p]), p, err)
						}
						f := fs[p]
						if _, moved := f.Advanced(epoch.Advance{Partition: p, Claim: id, From: f.Next, To: f.Next}); (moved == nil) != (err == nil) {
							t.Fatalf("claim %d of %d of %s: holds %v, advances %v", i, len(claims[p]), p, err, moved)
						}
					}
				}
				if !maps.Equal(fs, before) {
					t.Fatalf("holding left %+v, want %+v", fs, before)
				}
			},
		})
	})
}
