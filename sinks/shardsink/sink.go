package shardsink

import (
	"context"
	"errors"
	"fmt"
	"maps"

	"github.com/epochfence/epochfence/epoch"
)

// This file routes each call to the shard of its partition, which does the work, and decides whether a
// partition may be claimed for the first time. The shard decides about all later claims.

// Sink combines several sinks. Make it with [New]. It is safe for concurrent use.
type Sink[TX any] struct {
	route  func(p epoch.Partition, shards int) int
	shards []epoch.Sink[TX]
}

var (
	_ epoch.Sink[any]    = (*Sink[any])(nil)
	_ epoch.Holding[any] = (*Sink[any])(nil)
	_ epoch.Sharded      = (*Sink[any])(nil)
)

// New returns a sink that keeps each partition in the shard whose index route returns, given the
// number of shards. route is called often, by several goroutines at a time. It must always return
// the same index for the same partition. Each shard must be a database of its own.
func New[TX any](route func(p epoch.Partition, shards int) int, shards ...epoch.Sink[TX]) (*Sink[TX], error) {
	if route == nil {
		return nil, errors.New("shardsink: New needs a route; ByNumber is one")
	}
	if len(shards) == 0 {
		return nil, errors.New("shardsink: New needs at least one sink")
	}
	for i, s := range shards {
		if s == nil {
			return nil, fmt.Errorf("shardsink: shard %d is nil", i)
		}
	}
	return &Sink[TX]{route: route, shards: append([]epoch.Sink[TX](nil), shards...)}, nil
}

// ByNumber spreads each topic over all shards: partition n is in shard n modulo their number. With
// another shard it routes most partitions elsewhere, which is refused: see the package's
// documentation.
func ByNumber(p epoch.Partition, shards int) int { return int(p.Number) % shards }

// Shards implements [epoch.Sharded].
func (s *Sink[TX]) Shards() int { return len(s.shards) }

// Shard implements [epoch.Sharded]. It returns -1 if the route is wrong.
func (s *Sink[TX]) Shard(p epoch.Partition) int {
	home, err := s.home(p)
	if err != nil {
		return -1
	}
	return home
}

// home calls the route, which is a user's code.
func (s *Sink[TX]) home(p epoch.Partition) (shard int, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("the route panicked: %v", r)
		}
	}()
	shard = s.route(p, len(s.shards))
	if shard < 0 || shard >= len(s.shards) {
		return 0, fmt.Errorf("it is routed to shard %d, and there are %d: want 0 to %d", shard, len(s.shards), len(s.shards)-1)
	}
	return shard, nil
}

// Facts returns the weakest guarantee and the lowest limits of the shards. Replaced is nil: see [Sink.ReplacedIn].
func (s *Sink[TX]) Facts() epoch.Facts {
	least := s.shards[0].Facts()
	least.Replaced = nil
	lower := func(a, b int) int {
		if a == 0 || b == 0 {
			return max(a, b)
		}
		return min(a, b)
	}
	for _, shard := range s.shards[1:] {
		f := shard.Facts()
		least.Guarantee, least.Beside = min(least.Guarantee, f.Guarantee), least.Beside && f.Beside
		least.Transactions = min(least.Transactions, f.Transactions)
		least.Partitions, least.Messages = lower(least.Partitions, f.Partitions), lower(least.Messages, f.Messages)
	}
	return least
}

// ReplacedIn implements [epoch.Sharded].
func (s *Sink[TX]) ReplacedIn(shard int) <-chan struct{} { return s.shards[shard].Facts().Replaced }

// Look reads the fences of ps, each in its shard. It fails if any shard fails. If p alone is asked for, and is not
// there, the error is [epoch.ErrElsewhere] and names both shards if another one has it.
func (s *Sink[TX]) Look(ctx context.Context, ps []epoch.Partition) (epoch.Fences, error) {
	of := make([][]epoch.Partition, len(s.shards))
	for _, p := range ps {
		home, err := s.home(p)
		if err != nil {
			return nil, fmt.Errorf("shardsink: look at %s: %w", p, err)
		}
		of[home] = append(of[home], p)
	}
	found := epoch.Fences{}
	for home, ps := range of {
		if len(ps) == 0 {
			continue
		}
		here, err := s.shards[home].Look(ctx, ps)
		if err != nil {
			return nil, err
		}
		maps.Copy(found, here)
	}
	if len(ps) == 1 {
		if err := s.here(ctx, ps[0], found); err != nil {
			return nil, fmt.Errorf("shardsink: read fence %s: %w", ps[0], err)
		}
	}
	maps.DeleteFunc(found, func(_ epoch.Partition, f epoch.Fence) bool { return isRedirect(f) })
	return found, nil
}

// here returns nil unless another shard than that of p has its fence.
func (s *Sink[TX]) here(ctx context.Context, p epoch.Partition, found epoch.Fences) error {
	home, err := s.home(p)
	if err != nil {
		return err
	}
	if row, ok := found[p]; ok {
		return agrees(row, home, home)
	}
	rows, err := s.rows(ctx, []epoch.Partition{p})
	if err != nil {
		return err
	}
	return agree(rows, p, home)
}

// Commit runs a transaction in the shard of the partitions that it advances. If they are in several
// shards, it fails before it calls anything.
func (s *Sink[TX]) Commit(ctx context.Context, as []epoch.Advance, o epoch.TxOptions, calls ...func(ctx context.Context, tx TX) error) error {
	shard := 0 // which refuses a transaction without partitions
	for i, a := range as {
		home, err := s.home(a.Partition)
		if err != nil {
			return fmt.Errorf("shardsink: commit %s: %w", a.Partition, err)
		}
		if i > 0 && home != shard {
			return fmt.Errorf("shardsink: commit %s, which is in shard %d, together with %s, which is in shard %d: "+
				"a transaction is in one database; does a sink around this one hide its methods of epoch.Sharded?",
				as[i-1].Partition, shard, a.Partition, home)
		}
		shard = home
	}
	return s.shards[shard].Commit(ctx, as, o, calls...)
}

// CommitHeld runs a transaction in the shard of h's partition.
func (s *Sink[TX]) CommitHeld(ctx context.Context, h epoch.Hold, o epoch.TxOptions, apply func(ctx context.Context, tx TX) error) error {
	home, err := s.home(h.Partition)
	if err != nil {
		return fmt.Errorf("shardsink: commit %s under its claim: %w", h.Partition, err)
	}
	return epoch.CommitHeld(ctx, s.shards[home], h, o, apply)
}

// Claim implements [epoch.Sink] in the partition's shard. A claim of a fence without a lease
// generation, which no process has claimed yet, first reads all shards. It is refused with
// [epoch.ErrElsewhere] unless each other shard has a redirect row to this one: see the package's
// documentation. A refusal leaves the fence as it is, so that another try is refused too. Later
// claims need no other shard.
func (s *Sink[TX]) Claim(ctx context.Context, seen epoch.Fence, c epoch.Claim) (epoch.Fence, error) {
	home, err := s.home(c.Partition)
	if err == nil && seen.Generation == 0 { // an operator may have given it an epoch
		err = s.first(ctx, c.Partition, home)
	}
	if err != nil {
		return epoch.Fence{}, fmt.Errorf("shardsink: claim %s: %w", c.Partition, err)
	}
	return s.shards[home].Claim(ctx, seen, c)
}

// first returns nil if p may be claimed for the first time: its shard has its fence, and all others
// have redirect rows. It writes redirect rows that are missing, because a Seed was cut short, or
// because the shard is new, or was in use before there were shards.
func (s *Sink[TX]) first(ctx context.Context, p epoch.Partition, home int) error {
	ps := []epoch.Partition{p}
	rows, err := s.rows(ctx, ps)
	if err != nil {
		return err
	}
	fence, ok := rows[home][p]
	if !ok {
		return &epoch.MissingError{Partition: p}
	}
	if err := agree(rows, p, home); err != nil {
		return err
	}
	for in, found := range rows {
		if _, ok := found[p]; ok {
			continue
		}
		if err := s.shards[in].Seed(ctx, []epoch.Start{placed(as(fence, fence.Source), in, home)}); err != nil {
			return fmt.Errorf("shard %d: %w", in, err)
		}
		if rows[in], err = s.shards[in].Look(ctx, ps); err != nil {
			return fmt.Errorf("look into shard %d: %w", in, err)
		}
		if _, ok := rows[in][p]; !ok {
			return fmt.Errorf("shard %d: %w", in, &epoch.MissingError{Partition: p})
		}
	}
	return agree(rows, p, home)
}
