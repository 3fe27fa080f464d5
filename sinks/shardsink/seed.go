package shardsink

import (
	"context"
	"errors"
	"fmt"

	"github.com/epochfence/epochfence/epoch"
)

// Seed adds the fences that are missing, each in its shard, and signposts in the
// others; see the package's documentation. Whatever it has come to, the next call goes
// on from there. A partition that has its fence in another shard than the one it is
// routed to gets none: [Sink.Fence] says so.
//
// All shards have to answer before anything is written.
func (s *Sink[TX]) Seed(ctx context.Context, starts []epoch.Start) error {
	if err := s.seed(ctx, starts); err != nil {
		return fmt.Errorf("shardsink: seed: %w", err)
	}
	return nil
}

func (s *Sink[TX]) seed(ctx context.Context, starts []epoch.Start) error {
	if len(starts) == 0 {
		return nil
	}
	var ps []epoch.Partition
	for _, start := range starts {
		ps = append(ps, start.Partition)
	}
	rows, err := s.rows(ctx, ps)
	if err != nil {
		return err
	}
	known := false
	for _, found := range rows {
		known = known || len(found) > 0
	}
	var wrong error
	var here []routed // and not elsewhere
	for _, start := range starts {
		home, err := s.home(start.Partition)
		if err != nil {
			wrong = errors.Join(wrong, fmt.Errorf("%s: %w", start.Partition, err))
		} else if agree(rows, start.Partition, home) == nil {
			here = append(here, routed{start, home})
		}
	}

	// The first shard decides where partitions begin, in one transaction.
	var first []epoch.Start
	for _, r := range here {
		if known {
			r.Next = r.Earliest
		}
		first = append(first, placed(r.Start, 0, r.home))
	}
	if err := s.shards[0].Seed(ctx, first); err != nil {
		return errors.Join(err, wrong)
	}
	decided, err := epoch.Look(ctx, s.shards[0], ps)
	if err != nil {
		return errors.Join(fmt.Errorf("look into shard 0: %w", err), wrong)
	}

	// The others are told.
	for i := 1; i < len(s.shards); i++ {
		var there []epoch.Start
		for _, r := range here {
			if row, ok := decided[r.Partition]; ok && agrees(row, 0, r.home) == nil {
				there = append(there, placed(as(row, r.Source), i, r.home))
			}
		}
		if err := s.shards[i].Seed(ctx, there); err != nil {
			wrong = errors.Join(wrong, fmt.Errorf("shard %d: %w", i, err))
		}
	}
	return wrong
}

// routed is a start with the shard of its partition.
type routed struct {
	epoch.Start
	home int
}

// placed is what a shard is given of a start: the fence, or a signpost to where it is.
func placed(start epoch.Start, in, home int) epoch.Start {
	if in != home {
		start.Origin = signpost(start.Origin, home)
	}
	return start
}

// as is a start like a row that there is in some shard, fence or signpost. The log is the
// row's, too: should the topic have been recreated since, the fence says so.
func as(row epoch.Fence, leases string) epoch.Start {
	at := epoch.Position{Offset: row.Next, Mark: row.Mark}
	return epoch.Start{Origin: epoch.Origin{Partition: row.Partition, Log: logOf(row), Source: leases}, Next: at, Earliest: at}
}
