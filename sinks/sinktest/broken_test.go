package sinktest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/epochfence/epochfence/epoch"
)

// broken sinks lack one guard each. caught names a history that must fail, by
// the beginning of its claim.
var broken = []struct {
	name   string
	rule   string
	take   func(db *toy)
	caught string
}{
	{"the claim is not checked", "R1", func(db *toy) {
		db.advance = eachAdvance(func(f epoch.Fence, a epoch.Advance) (epoch.Fence, error) {
			a.Claim = f.Claim
			return f.Advanced(a)
		})
	}, "stale writer"},
	{"the zero claim is good for a fence that nobody has claimed", "R1", func(db *toy) {
		db.advance = eachAdvance(func(f epoch.Fence, a epoch.Advance) (epoch.Fence, error) {
			if f.Claim != a.Claim {
				return f.Advanced(a)
			}
			held := f.Claim
			f.Claim, a.Claim = epoch.ClaimID{1}, epoch.ClaimID{1}
			next, err := f.Advanced(a)
			next.Claim = held
			return next, err
		})
	}, "ownership is judged before the position"},
	{"the position is not checked", "R1", func(db *toy) {
		db.advance = eachAdvance(func(f epoch.Fence, a epoch.Advance) (epoch.Fence, error) {
			f.Next = a.From
			return f.Advanced(a)
		})
	}, "lost commit acknowledgement, landed"},
	{"ownership is owner and generation, not the claim", "R1", func(db *toy) {
		claims := map[epoch.ClaimID]epoch.Claim{}
		db.claim = func(fs epoch.Fences, seen epoch.Fence, c epoch.Claim) (epoch.Fence, error) {
			claims[c.ID] = c
			return fs.Claim(seen, c)
		}
		db.advance = eachAdvance(func(f epoch.Fence, a epoch.Advance) (epoch.Fence, error) {
			if c := claims[a.Claim]; c.Generation == f.Generation && c.Owner == f.Owner {
				a.Claim = f.Claim
			}
			return f.Advanced(a)
		})
	}, "static member swap"},
	{"the epoch is the lease's generation", "R1", func(db *toy) {
		db.claim = func(fs epoch.Fences, seen epoch.Fence, c epoch.Claim) (epoch.Fence, error) {
			f, err := fs.Claim(seen, c)
			if err == nil {
				f.Epoch = epoch.Epoch(c.Generation)
				fs[c.Partition] = f
			}
			return f, err
		}
	}, "group deleted"},
	{"the epoch only counts", "R1", func(db *toy) {
		db.claim = func(fs epoch.Fences, seen epoch.Fence, c epoch.Claim) (epoch.Fence, error) {
			f, err := fs.Claim(seen, c)
			if err == nil {
				f.Epoch = seen.Epoch + 1
				fs[c.Partition] = f
			}
			return f, err
		}
	}, "sink restored from backup"},
	{"a look shows what it saw before", "R5", func(db *toy) {
		before := epoch.Fences{}
		db.look = func(fs epoch.Fences, ps []epoch.Partition) (epoch.Fences, error) {
			if len(ps) == 1 {
				return soundLook(fs, ps)
			}
			for p, f := range fs {
				if _, ok := before[p]; !ok {
					before[p] = f
				}
			}
			return soundLook(before, ps)
		}
	}, "a look at many partitions"},
	{"a refusal does not show who holds the fence", "R6", func(db *toy) {
		db.advance = eachAdvance(func(f epoch.Fence, a epoch.Advance) (epoch.Fence, error) {
			next, err := f.Advanced(a)
			var stale *epoch.StaleError
			if errors.As(err, &stale) {
				stale.Held = epoch.Fence{Origin: f.Origin, Epoch: stale.Held.Epoch + 100}
			}
			return next, err
		})
	}, "sink that went back"},
	{"the swap does not compare", "R2", func(db *toy) {
		db.claim = func(fs epoch.Fences, _ epoch.Fence, c epoch.Claim) (epoch.Fence, error) {
			return fs.Claim(fs[c.Partition], c)
		}
	}, "frozen between confirm and swap"},
	{"the swap lets a higher generation pass", "R2", func(db *toy) {
		db.claim = func(fs epoch.Fences, seen epoch.Fence, c epoch.Claim) (epoch.Fence, error) {
			if now := fs[c.Partition]; c.Generation > now.Generation {
				seen = now
			}
			return fs.Claim(seen, c)
		}
	}, "frozen between confirm and swap"},
	{"the swap writes back the position it had seen", "R8", func(db *toy) {
		db.claim = func(fs epoch.Fences, seen epoch.Fence, c epoch.Claim) (epoch.Fence, error) {
			f, err := fs.Claim(seen, c)
			if err == nil {
				f.Next, f.Mark = seen.Next, seen.Mark
				fs[c.Partition] = f
			}
			return f, err
		}
	}, "claiming moves no position"},
	{"every claim adopts what it brings", "R8", func(db *toy) {
		db.claim = func(fs epoch.Fences, seen epoch.Fence, c epoch.Claim) (epoch.Fence, error) {
			at := c.Adopt
			c.Adopt = nil
			f, err := fs.Claim(seen, c)
			if err == nil && at != nil {
				f.Next, f.Mark, f.Applied = at.Offset, at.Mark, true
				fs[c.Partition] = f
			}
			return f, err
		}
	}, "the first claim of a fence may adopt"},
	{"what a claim adopts is looked at by the last of them, too", "R8", func(db *toy) {
		db.claim = func(fs epoch.Fences, seen epoch.Fence, c epoch.Claim) (epoch.Fence, error) {
			if now := fs[c.Partition]; c.Adopt != nil && seen.Epoch == 0 && now.Epoch > 0 {
				now.Next = c.Adopt.Offset
				fs[c.Partition] = now
			}
			return fs.Claim(seen, c)
		}
	}, "of many first claims that adopt"},
	{"a position that is adopted has no mark", "R10", func(db *toy) {
		db.claim = func(fs epoch.Fences, seen epoch.Fence, c epoch.Claim) (epoch.Fence, error) {
			if c.Adopt != nil {
				c.Adopt = &epoch.Position{Offset: c.Adopt.Offset, Mark: epoch.NoMark}
			}
			return fs.Claim(seen, c)
		}
	}, "the first claim of a fence may adopt"},
	{"a seeded position has no mark", "R10", func(db *toy) {
		db.seed = func(fs epoch.Fences, starts []epoch.Start) error {
			starts = slices.Clone(starts)
			for i := range starts {
				starts[i].Next.Mark = epoch.NoMark
			}
			return fs.Seed(starts)
		}
	}, "a topic that the group does not know"},
	{"a transaction that applies nothing counts as one that does", "R9", func(db *toy) {
		db.advance = eachAdvance(func(f epoch.Fence, a epoch.Advance) (epoch.Fence, error) {
			f, err := f.Advanced(a)
			f.Applied = f.Applied || err == nil
			return f, err
		})
	}, "a fence says whether anything"},
	{"what was applied is not noted", "R9", func(db *toy) {
		db.advance = eachAdvance(func(f epoch.Fence, a epoch.Advance) (epoch.Fence, error) {
			f, err := f.Advanced(a)
			f.Applied = false
			return f, err
		})
	}, "a fence says whether anything"},
	{"a lease of generation zero is taken", "R2", func(db *toy) {
		db.claim = func(fs epoch.Fences, seen epoch.Fence, c epoch.Claim) (epoch.Fence, error) {
			c.Generation = max(c.Generation, 1)
			return fs.Claim(seen, c)
		}
	}, "a lease whose generation is not positive"},
	{"the log is not compared", "R10", func(db *toy) {
		db.claim = func(fs epoch.Fences, seen epoch.Fence, c epoch.Claim) (epoch.Fence, error) {
			c.Log = fs[c.Partition].Log
			return fs.Claim(seen, c)
		}
	}, "topic deleted and recreated"},
	{"the issuer of leases is not compared", "R2", func(db *toy) {
		db.claim = func(fs epoch.Fences, seen epoch.Fence, c epoch.Claim) (epoch.Fence, error) {
			c.Source = fs[c.Partition].Source
			return fs.Claim(seen, c)
		}
	}, "two deployments on one group"},
	{"the refusal is returned, but the effects are in", "R3", func(db *toy) {
		db.advance = func(fs epoch.Fences, as []epoch.Advance) error { return nil }
		commit := db.commit
		db.commit = func(ctx context.Context, as []epoch.Advance, o epoch.TxOptions, apply func(context.Context, *toyTx) error) error {
			if err := commit(ctx, as, o, apply); err != nil {
				return err
			}
			db.mu.Lock()
			defer db.mu.Unlock()
			return db.fences.Advance(as)
		}
	}, "stale writer"},
	{"the refusal is a row count that nobody reads", "R3", func(db *toy) {
		db.advance = func(fs epoch.Fences, as []epoch.Advance) error {
			_ = fs.Advance(as)
			return nil
		}
	}, "stale writer"},
	{"every refusal is called stale", "R3", func(db *toy) {
		db.advance = func(fs epoch.Fences, as []epoch.Advance) error {
			if err := fs.Advance(as); err != nil {
				return &epoch.StaleError{Partition: as[0].Partition, Ours: as[0].Claim}
			}
			return nil
		}
	}, "an advance from another offset"},
	{"the refusal names the partition given first", "R3", func(db *toy) {
		db.advance = func(fs epoch.Fences, as []epoch.Advance) error {
			after := maps.Clone(fs)
			for _, a := range as {
				f, err := after[a.Partition].Advanced(a)
				if err != nil {
					return err
				}
				after[a.Partition] = f
			}
			maps.Copy(fs, after)
			return nil
		}
	}, "of several partitions one is refused"},
	{"the fence is checked first and moved last", "R4", func(db *toy) {
		advance := db.advance
		db.advance = eachAdvance(func(f epoch.Fence, a epoch.Advance) (epoch.Fence, error) {
			f.Next = a.To
			return f, nil
		})
		commit := db.commit
		db.commit = func(ctx context.Context, as []epoch.Advance, o epoch.TxOptions, apply func(context.Context, *toyTx) error) error {
			db.mu.Lock()
			err := advance(maps.Clone(db.fences), as)
			db.mu.Unlock()
			if err != nil {
				return err
			}
			return commit(ctx, as, o, apply)
		}
	}, "frozen with the transaction open, before its first write"},
	{"the partitions of a transaction advance one by one", "R1", func(db *toy) {
		db.advance = func(fs epoch.Fences, as []epoch.Advance) error {
			for _, a := range as {
				if err := fs.Advance([]epoch.Advance{a}); err != nil {
					return err
				}
			}
			return nil
		}
	}, "of several partitions one is refused"},
	{"what cannot be committed is tried again by the sink", "R5", func(db *toy) {
		commit := db.commit
		db.commit = func(ctx context.Context, as []epoch.Advance, o epoch.TxOptions, apply func(context.Context, *toyTx) error) error {
			if err := commit(ctx, as, o, apply); err == nil {
				return nil
			}
			return commit(ctx, as, o, apply)
		}
	}, "stale writer"},
	{"a moved advance is patched up instead of claimed again", "R5", func(db *toy) {
		db.advance = eachAdvance(func(f epoch.Fence, a epoch.Advance) (epoch.Fence, error) {
			if next, err := f.Advanced(a); !errors.Is(err, epoch.ErrMoved) {
				return next, err
			}
			a.To += f.Next - a.From
			a.From = f.Next
			return f.Advanced(a)
		})
	}, "lost commit acknowledgement, landed"},
	{"a stale partition takes the process's others down", "R6", func(db *toy) {
		down := map[epoch.ClaimID]bool{}
		db.advance = func(fs epoch.Fences, as []epoch.Advance) error {
			for _, a := range as {
				if down[a.Claim] {
					return &epoch.StaleError{Partition: a.Partition, Ours: a.Claim, Held: fs[a.Partition]}
				}
			}
			err := fs.Advance(as)
			if errors.Is(err, epoch.ErrStale) {
				for _, a := range as {
					down[a.Claim] = true
				}
			}
			return err
		}
	}, "of several partitions one is refused"},
	{"a new generation anywhere ends every claim of an older one", "R7", func(db *toy) {
		db.advance = func(fs epoch.Fences, as []epoch.Advance) error {
			for _, a := range as {
				for p, f := range fs {
					if p.Group == a.Partition.Group && f.Generation > fs[a.Partition].Generation {
						return &epoch.StaleError{Partition: a.Partition, Ours: a.Claim, Held: fs[a.Partition]}
					}
				}
			}
			return fs.Advance(as)
		}
	}, "retained partition"},
	{"a known topic's new partition begins at the policy's offset", "R9", func(db *toy) {
		db.seed = func(fs epoch.Fences, starts []epoch.Start) error {
			for _, s := range starts {
				if _, ok := fs[s.Partition]; !ok {
					fs[s.Partition] = epoch.Fence{Origin: s.Origin, Next: s.Next.Offset, Mark: s.Next.Mark}
				}
			}
			return nil
		}
	}, "a new partition of a known topic"},
	{"each partition of an unknown topic makes it known to the next", "R9", func(db *toy) {
		db.seed = func(fs epoch.Fences, starts []epoch.Start) error {
			if err := maps.Clone(fs).Seed(starts); err != nil {
				return err
			}
			for _, s := range starts {
				if err := fs.Seed([]epoch.Start{s}); err != nil {
					return err
				}
			}
			return nil
		}
	}, "a topic that the group does not know"},
	{"a group's other topics make a topic known", "R9", func(db *toy) {
		db.seed = func(fs epoch.Fences, starts []epoch.Start) error {
			for p := range fs {
				if len(starts) > 0 && p.Group == starts[0].Partition.Group {
					for i := range starts {
						starts[i].Next = starts[i].Earliest
					}
				}
			}
			return fs.Seed(starts)
		}
	}, "topics and groups are known by themselves"},
	{"seeding replaces the fence", "R9", func(db *toy) {
		db.seed = func(fs epoch.Fences, starts []epoch.Start) error {
			for _, s := range starts {
				delete(fs, s.Partition)
			}
			return fs.Seed(starts)
		}
	}, "seeding leaves a fence that exists"},
	{"concurrent seedings do not see each other", "R9", func(db *toy) {
		db.seed = func(fs epoch.Fences, starts []epoch.Start) error {
			known := maps.Clone(fs)
			db.mu.Unlock()
			for range 100 {
				runtime.Gosched()
			}
			db.mu.Lock()
			before := maps.Clone(known)
			if err := known.Seed(starts); err != nil {
				return err
			}
			for p, f := range known {
				if _, ok := before[p]; !ok {
					fs[p] = f
				}
			}
			return nil
		}
	}, "of concurrent seedings of different partitions"},
	{"a claim makes the fence it does not find", "R9", func(db *toy) {
		db.claim = func(fs epoch.Fences, seen epoch.Fence, c epoch.Claim) (epoch.Fence, error) {
			if _, ok := fs[c.Partition]; !ok {
				fs[c.Partition] = epoch.Fence{Origin: c.Origin, Mark: epoch.NoMark}
			}
			return fs.Claim(seen, c)
		}
	}, "a partition without a fence is missing"},
	{"the mark is forgotten", "R10", func(db *toy) {
		db.advance = eachAdvance(func(f epoch.Fence, a epoch.Advance) (epoch.Fence, error) {
			a.Mark = epoch.NoMark
			return f.Advanced(a)
		})
	}, "truncated log"},
	{"a claim holds for ten seconds, by the clock", "R11", func(db *toy) {
		since := map[epoch.Partition]time.Time{}
		db.claim = func(fs epoch.Fences, seen epoch.Fence, c epoch.Claim) (epoch.Fence, error) {
			if time.Since(since[c.Partition]) < 10*time.Second {
				return epoch.Fence{}, fmt.Errorf("%s is claimed", c.Partition)
			}
			since[c.Partition] = time.Now()
			return fs.Claim(seen, c)
		}
	}, "stale writer"},
	{"the context is not looked at", "R12", func(db *toy) {
		commit := db.commit
		db.commit = func(ctx context.Context, as []epoch.Advance, o epoch.TxOptions, apply func(context.Context, *toyTx) error) error {
			return commit(context.WithoutCancel(ctx), as, o, apply)
		}
	}, "a context that ends in the handler"},
	{"a commit that took too long is reported as one that was not made", "R5", func(db *toy) {
		commit := db.commit
		db.commit = func(ctx context.Context, as []epoch.Advance, o epoch.TxOptions, apply func(context.Context, *toyTx) error) error {
			if err := commit(ctx, as, o, apply); err != nil {
				return err
			}
			if end, ok := ctx.Deadline(); ok && time.Until(end) < time.Second { // the answer takes its time
				<-ctx.Done()
				return ctx.Err()
			}
			return nil
		}
	}, "a commit cut off at any moment"},
	{"a handler's panic is swallowed", "R12", func(db *toy) {
		commit := db.commit
		db.commit = func(ctx context.Context, as []epoch.Advance, o epoch.TxOptions, apply func(context.Context, *toyTx) error) (err error) {
			defer func() {
				if r := recover(); r != nil {
					err = fmt.Errorf("%v", r)
				}
			}()
			return commit(ctx, as, o, apply)
		}
	}, "a handler's panic"},
	{"a handler that ends early commits", "R12", func(db *toy) {
		commit := db.commit
		db.commit = func(ctx context.Context, as []epoch.Advance, o epoch.TxOptions, apply func(context.Context, *toyTx) error) error {
			var tx *toyTx
			returned := false
			defer func() {
				if !returned {
					_ = commit(ctx, as, o, func(_ context.Context, again *toyTx) error {
						again.list, again.value = tx.list, tx.value
						return nil
					})
				}
			}()
			err := commit(ctx, as, o, func(ctx context.Context, t *toyTx) error { tx = t; return apply(ctx, t) })
			returned = true
			return err
		}
	}, "a handler that ends its goroutine"},
	{"the handler's error is described, not returned", "R3", func(db *toy) {
		commit := db.commit
		db.commit = func(ctx context.Context, as []epoch.Advance, o epoch.TxOptions, apply func(context.Context, *toyTx) error) error {
			err := commit(ctx, as, o, apply)
			if err != nil && !errors.Is(err, epoch.ErrStale) && !errors.Is(err, epoch.ErrMoved) {
				return errors.New(err.Error())
			}
			return err
		}
	}, "a handler's error is returned"},
	{"a failed handler's writes stay", "R1", func(db *toy) {
		db.append = func(tx *toyTx, list, value string) error {
			if err := tx.soundAppend(list, value); err != nil {
				return err
			}
			db.mu.Lock()
			defer db.mu.Unlock()
			tx.land()
			return nil
		}
	}, "poison message in the middle"},
	{"a transaction outlives its handler", "R1", func(db *toy) {
		db.append = func(tx *toyTx, list, value string) error {
			if tx.ended.Load() {
				db.lists[list] = append(db.lists[list], value)
				return nil
			}
			return tx.soundAppend(list, value)
		}
	}, "a transaction is of no use"},
	{"a commit without an advance is taken", "R1", func(db *toy) { db.unfenced = true }, "a commit without an advance"},
	{"two advances of one partition are refused only after apply", "R1", func(db *toy) { db.twice = true }, "a partition that is given twice"},
	{"two advances of one partition are taken one after the other", "R1", func(db *toy) {
		db.twice = true
		db.advance = eachAdvance(epoch.Fence.Advanced)
	}, "a partition that is given twice"},
	{"a handler's own commit goes unseen", "R3", func(db *toy) { db.unseenEscape = true }, "handler that commits by itself"},
	{"a wait for a lock is a message's fault", "R12", func(db *toy) { db.lockable, db.lockedOut = true, nil }, "a wait for another"},
	{"names are compared without case", "R9", func(db *toy) { db.renames(strings.ToLower) }, "names that differ at all"},
	{"names are cut at 200 bytes", "R9", func(db *toy) {
		db.renames(func(s string) string { return s[:min(len(s), 200)] })
	}, "names with quotes"},
	{"names lose what is not UTF-8", "R9", func(db *toy) {
		db.renames(func(s string) string { return strings.ToValidUTF8(s, "") })
	}, "a name that the database cannot hold"},
	{"offsets have 32 bits", "R1", func(db *toy) {
		db.advance = eachAdvance(func(f epoch.Fence, a epoch.Advance) (epoch.Fence, error) {
			f, err := f.Advanced(a)
			f.Next = epoch.Offset(int32(f.Next))
			return f, err
		})
	}, "offsets and partition numbers"},
	{"a held claim is not looked at", "R1", func(db *toy) {
		db.hold = func(fs epoch.Fences, h epoch.Hold) error {
			_, err := fs.Read(h.Partition)
			return err
		}
	}, "a held claim that another one has replaced"},
	{"the zero claim can be held where nobody has claimed", "R1", func(db *toy) {
		db.hold = func(fs epoch.Fences, h epoch.Hold) error {
			if f, ok := fs[h.Partition]; ok && f.Claim == h.Claim {
				return nil
			}
			return fs.Hold(h)
		}
	}, "a held claim that another one has replaced"},
	{"a held claim is an advance that applies nothing", "R1", func(db *toy) {
		db.held = func(ctx context.Context, h epoch.Hold, o epoch.TxOptions, apply func(context.Context, *toyTx) error) error {
			db.mu.Lock()
			at := db.fences[h.Partition].Next
			db.mu.Unlock()
			return db.soundCommit(ctx, []epoch.Advance{{Partition: h.Partition, Claim: h.Claim, From: at, To: at}}, o, apply)
		}
	}, "a held claim commits wherever the position is"},
	{"a held claim's transaction writes back the fence it began with", "R1", func(db *toy) {
		db.held = func(ctx context.Context, h epoch.Hold, o epoch.TxOptions, apply func(context.Context, *toyTx) error) error {
			db.mu.Lock()
			before, ok := db.fences[h.Partition]
			db.mu.Unlock()
			err := db.soundHeld(ctx, h, o, apply)
			if err == nil && ok {
				db.mu.Lock()
				defer db.mu.Unlock()
				db.fences[h.Partition] = before
			}
			return err
		}
	}, "a held claim commits wherever the position is"},
	{"a held claim without a fence is stale", "R3", func(db *toy) {
		db.hold = func(fs epoch.Fences, h epoch.Hold) error {
			err := fs.Hold(h)
			if errors.Is(err, epoch.ErrMissing) {
				return &epoch.StaleError{Partition: h.Partition, Ours: h.Claim}
			}
			return err
		}
	}, "a held claim of a partition without a fence"},
	{"the refusal of a held claim is a row count that nobody reads", "R3", func(db *toy) {
		db.hold = func(fs epoch.Fences, h epoch.Hold) error { return nil }
	}, "a held claim that another one has replaced"},
	{"a held claim is looked at first, and not again", "R4", func(db *toy) {
		db.held = func(ctx context.Context, h epoch.Hold, o epoch.TxOptions, apply func(context.Context, *toyTx) error) error {
			db.mu.Lock()
			err := db.fences.Hold(h)
			db.mu.Unlock()
			if err != nil {
				return err
			}
			return db.transact(ctx, o, func() error { return nil }, apply)
		}
	}, "a held claim is looked at last"},
	{"a held claim is looked at last, and the next one does not wait for the commit behind it", "R4", func(db *toy) {
		db.held = func(ctx context.Context, h epoch.Hold, o epoch.TxOptions, apply func(context.Context, *toyTx) error) error {
			return db.transact(ctx, o, func() error {
				if err := db.fences.Hold(h); err != nil {
					return err
				}
				// The lock is gone before the commit.
				if listed := db.listed; db.unlocked(10, func() bool { return db.fences.Hold(h) != nil }) {
					db.unlocked(1000, func() bool { return db.listed > listed })
				}
				return nil
			}, apply)
		}
	}, "a held claim and the next one in any order"},
	{"a held claim's transaction looks at no context", "R12", func(db *toy) {
		db.held = func(ctx context.Context, h epoch.Hold, o epoch.TxOptions, apply func(context.Context, *toyTx) error) error {
			return db.soundHeld(context.WithoutCancel(ctx), h, o, apply)
		}
	}, "a context that ends in the handler commits nothing, even if the handler does not care, under a held claim"},
	{"a handler's panic is swallowed under a held claim", "R12", func(db *toy) {
		db.held = func(ctx context.Context, h epoch.Hold, o epoch.TxOptions, apply func(context.Context, *toyTx) error) (err error) {
			defer func() {
				if r := recover(); r != nil {
					err = fmt.Errorf("%v", r)
				}
			}()
			return db.soundHeld(ctx, h, o, apply)
		}
	}, "a handler's panic reaches the caller, nothing is committed, and the sink works on, under a held claim"},
	{"a refused held claim is tried again by the sink", "R5", func(db *toy) {
		db.held = func(ctx context.Context, h epoch.Hold, o epoch.TxOptions, apply func(context.Context, *toyTx) error) error {
			if err := db.soundHeld(ctx, h, o, apply); err == nil {
				return nil
			}
			return db.soundHeld(ctx, h, o, apply)
		}
	}, "a held claim is looked at last"},
	{"a transaction is not abandoned", "L7", func(db *toy) { db.deaf = true }, "a handler that hangs is abandoned"},
	{"calls that may run beside each other do not", "R1", func(db *toy) { db.inTurn = true }, "calls beside each other are open at one time"},
	{"a call that fails beside others costs only its own writes", "R1", func(db *toy) { db.forgiving = true }, "calls beside each other are open at one time"},
	{"an abandoned transaction does not say so", "L7", func(db *toy) { db.lingering = true }, "a handler that hangs before its first write"},
}

// eachAdvance is Fences.Advance with another way to advance one fence.
func eachAdvance(advanced func(epoch.Fence, epoch.Advance) (epoch.Fence, error)) func(epoch.Fences, []epoch.Advance) error {
	return func(fs epoch.Fences, as []epoch.Advance) error {
		after := maps.Clone(fs)
		for _, a := range slices.SortedFunc(slices.Values(as), func(a, b epoch.Advance) int { return a.Partition.Compare(b.Partition) }) {
			f, err := after.Read(a.Partition)
			if err != nil {
				return err
			}
			if f, err = advanced(f, a); err != nil {
				return err
			}
			after[a.Partition] = f
		}
		maps.Copy(fs, after)
		return nil
	}
}

// renames has the toy seed under another topic than it was told.
func (db *toy) renames(rename func(string) string) {
	db.seed = func(fs epoch.Fences, starts []epoch.Start) error {
		starts = slices.Clone(starts)
		for i := range starts {
			starts[i].Partition.Topic = rename(starts[i].Partition.Topic)
			starts[i].Partition.Group = rename(starts[i].Partition.Group)
		}
		return fs.Seed(starts)
	}
	db.claim = func(fs epoch.Fences, seen epoch.Fence, c epoch.Claim) (epoch.Fence, error) {
		c.Partition.Topic, c.Partition.Group = rename(c.Partition.Topic), rename(c.Partition.Group)
		return fs.Claim(seen, c)
	}
}
