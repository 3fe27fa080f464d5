package epoch_test

import (
	"errors"
	"maps"
	"testing"

	"pgregory.net/rapid"

	"github.com/epochfence/epochfence/epoch"
)

// Processes read, claim with generations that repeat and fall, and advance under any
// claim they ever had, from anywhere.
func TestRandomHistoriesKeepThePromises(t *testing.T) {
	partitions := []epoch.Partition{orders0, orders1}
	rapid.Check(t, func(t *rapid.T) {
		fs := epoch.Fences{}
		if err := fs.Seed([]epoch.Start{start(orders0, 0, 0), start(orders1, 0, 0)}); err != nil {
			t.Fatal(err)
		}
		var seen, held []epoch.Fence
		issued := map[epoch.Partition][]epoch.Epoch{}
		applied := map[epoch.Partition]epoch.Offset{} // all effects below are there, once

		t.Repeat(map[string]func(*rapid.T){
			"read": func(t *rapid.T) {
				seen = append(seen, fs[rapid.SampledFrom(partitions).Draw(t, "partition")])
			},
			"swap": func(t *rapid.T) {
				if len(seen) == 0 {
					t.Skip("nothing seen")
				}
				s := rapid.SampledFrom(seen).Draw(t, "seen")
				before := fs[s.Partition]
				c := epoch.NewClaim(epoch.Lease{Origin: s.Origin, Generation: rapid.Int64Range(-1, 8).Draw(t, "generation")})
				f, err := fs.Claim(s, c)
				fresh := s.Epoch == before.Epoch && s.Claim == before.Claim
				if (err == nil) != (fresh && c.Generation > 0) {
					t.Fatalf("a claim on %+v, having seen %+v: %v", before, s, err)
				}
				if err == nil {
					if f.Next != before.Next {
						t.Fatalf("a claim moved the position from %d to %d", before.Next, f.Next)
					}
					issued[f.Partition] = append(issued[f.Partition], f.Epoch)
					held = append(held, f)
				}
			},
			"advance": func(t *rapid.T) {
				if len(held) == 0 {
					t.Skip("nothing claimed")
				}
				var as []epoch.Advance
				owned := true
				for _, h := range rapid.SliceOfNDistinct(rapid.SampledFrom(held), 1, 2, func(f epoch.Fence) epoch.Partition { return f.Partition }).Draw(t, "held") {
					from := rapid.SampledFrom([]epoch.Offset{h.Next, fs[h.Partition].Next, applied[h.Partition] + 1}).Draw(t, "from")
					a := epoch.Advance{Partition: h.Partition, Claim: h.Claim, From: from, To: from + epoch.Offset(rapid.IntRange(0, 3).Draw(t, "messages"))}
					as = append(as, a)
					owned = owned && fs[h.Partition].Claim == h.Claim && fs[h.Partition].Next == from
				}
				before := maps.Clone(fs)
				err := fs.Advance(as)
				if (err == nil) != owned {
					t.Fatalf("advance %+v on %+v: %v", as, before, err)
				}
				if err != nil {
					if !maps.Equal(fs, before) {
						t.Fatalf("a refused advance left %+v", fs)
					}
					if !errors.Is(err, epoch.ErrStale) && !errors.Is(err, epoch.ErrMoved) {
						t.Fatalf("err = %v", err)
					}
					return
				}
				for _, a := range as {
					if a.From != applied[a.Partition] {
						t.Fatalf("effects from %d on, after those below %d", a.From, applied[a.Partition])
					}
					applied[a.Partition] = a.To
				}
			},
			"": func(t *rapid.T) {
				for p, f := range fs {
					if f.Next != applied[p] {
						t.Fatalf("%s is at %d, and %d are applied", p, f.Next, applied[p])
					}
					can := map[epoch.ClaimID]bool{}
					for _, h := range held {
						if _, err := f.Advanced(epoch.Advance{Partition: p, Claim: h.Claim, From: f.Next, To: f.Next}); err == nil {
							can[h.Claim] = true
						}
					}
					if len(can) > 1 {
						t.Fatalf("%s can be advanced under %d claims", p, len(can))
					}
					for i, e := range issued[p] {
						if e < 1 || i > 0 && e <= issued[p][i-1] {
							t.Fatalf("epochs of %s: %v", p, issued[p])
						}
					}
				}
			},
		})
	})
}
