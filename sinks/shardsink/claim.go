package shardsink

import (
	"context"
	"fmt"

	"github.com/epochfence/epochfence/epoch"
)

// This file decides whether a partition may be claimed for the first time. The shard decides about
// all later claims.

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
		if rows[in], err = epoch.Look(ctx, s.shards[in], ps); err != nil {
			return fmt.Errorf("look into shard %d: %w", in, err)
		}
		if _, ok := rows[in][p]; !ok {
			return fmt.Errorf("shard %d: %w", in, &epoch.MissingError{Partition: p})
		}
	}
	return agree(rows, p, home)
}
