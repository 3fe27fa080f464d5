package sinktest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"

	"github.com/epochfence/epochfence/epoch"
)

// manyAtATime lets processes claim from each other at any time, under generations that repeat and
// fall, and commit. Each process stops once every partition is done.
func manyAtATime(w *world) {
	const each = 40 // messages of each partition
	ps := []epoch.Partition{orders0, orders1, orders2}
	w.seed(ps...)
	seed := rand.Uint64()
	w.Logf("seed %d", seed)
	w.together(4, func(n int, a *process) {
		r := rand.New(rand.NewPCG(seed, uint64(n)))
		held := map[epoch.Partition]*tenure{}
		for {
			through := true
			for _, p := range ps {
				f, err := a.sink.Fence(w.ctx, p)
				if errors.Is(err, epoch.ErrTransient) {
					through = false // see below
					continue
				}
				if err != nil {
					w.Errorf("read: %v", err)
					return
				}
				if f.Next == each {
					delete(held, p)
					continue
				}
				through = false
				if held[p] != nil || r.IntN(3) > 0 {
					continue
				}
				f, err = a.sink.Claim(w.ctx, f, epoch.NewClaim(lease(p, r.Int64N(9)+1, a.name)))
				switch {
				case err == nil:
					held[p] = &tenure{process: a, Fence: f}
				case errors.Is(err, epoch.ErrTransient) && len(class(err)) == 0:
					// A sink that ends the transaction of a replaced claim may come after its end,
					// and meet another user of its connection.
				case !w.isOnly(err, epoch.ErrStale, "claim"):
					return
				}
			}
			if through {
				return
			}
			if !a.commitSome(r, held, each) {
				return
			}
		}
	})
	for _, p := range ps {
		list, err := w.db.List(w.ctx, p.String())
		if err != nil {
			w.Fatal(err)
		}
		last := epoch.Epoch(0)
		for i, s := range list {
			var o epoch.Offset
			var e epoch.Epoch
			if _, err := fmt.Sscanf(s, "%d@%d", &o, &e); err != nil {
				w.Fatal(err)
			}
			if o != epoch.Offset(i) || e < last {
				w.Fatalf("%s: at place %d is the effect of offset %d under epoch %d, after epoch %d:\n%q", p, i, o, e, last, list)
			}
			last = e
		}
		if len(list) != each {
			w.Errorf("%s: %d effects of %d messages", p, len(list), each)
		}
	}
}

// commitSome commits a few messages of some held partitions in one transaction, and drops the
// partitions that it has lost. In doubt it drops all, and will claim again. It returns false after
// an answer that no sink may give.
func (a *process) commitSome(r *rand.Rand, held map[epoch.Partition]*tenure, end epoch.Offset) bool {
	var ts []*tenure
	var as []epoch.Advance
	for _, t := range held { // in any order
		if left := int(end - t.Next); left > 0 && r.IntN(3) > 0 {
			ts = append(ts, t)
			as = append(as, t.advance(1+r.IntN(min(3, left))))
		}
	}
	if len(as) == 0 {
		return true
	}
	w := a.w
	as = a.fit(as)
	err := a.sink.Commit(w.ctx, as, func(ctx context.Context, tx any) error {
		for i, one := range as {
			if err := w.effects(ctx, tx, one, ts[i].Epoch); err != nil {
				return err
			}
		}
		return nil
	})
	var stale *epoch.StaleError
	switch {
	case err == nil:
		for i := range as {
			ts[i].moves(as[i])
		}
	case errors.As(err, &stale):
		delete(held, stale.Partition)
	case errors.Is(err, epoch.ErrInDoubt):
		clear(held)
	default:
		w.Errorf("commit %+v: %v", as, err)
		return false
	}
	return true
}
