package shardsink

import (
	"context"
	"errors"
	"fmt"

	"github.com/epochfence/epochfence/epoch"
)

// This file decides where partitions begin, from the rows of the first shard, and writes fences
// and redirect rows. Later claims are decided in claim.go.

// Seed adds the fences that are missing, each in its shard, and redirect rows in the others. The
// rows of the first shard decide where partitions begin. They are written in one transaction,
// redirect rows included, so that one of the processes that start at the same time decides for all,
// and the other shards copy them. A topic is known if any shard has a row of it, and new partitions
// of a known topic begin at the earliest message.
//
// All shards must answer before anything is written. An error may leave rows missing: a repeated call
// writes them. Seed writes nothing for a partition whose fence is in another shard than the
// route's: [Sink.Fence] returns [epoch.ErrElsewhere] for it.
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
	var here []routed // not found in another shard
	var ours []epoch.Start
	fences := epoch.Fences{} // of all shards, without redirect rows
	for _, start := range starts {
		home, err := s.home(start.Partition)
		if err != nil {
			wrong = errors.Join(wrong, fmt.Errorf("%s: %w", start.Partition, err))
		} else if agree(rows, start.Partition, home) == nil {
			here, ours = append(here, routed{start, home}), append(ours, start)
			if f, ok := rows[home][start.Partition]; ok {
				fences[start.Partition] = f
			}
		}
	}
	if err := fences.Seed(ours); err != nil {
		return errors.Join(err, wrong)
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

	// The other shards copy that.
	for i := 1; i < len(s.shards); i++ {
		var there []epoch.Start
		for _, r := range here {
			if _, has := rows[i][r.Partition]; has {
				continue // with the log that an operator may have accepted there since
			}
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

type routed struct {
	epoch.Start
	home int
}

// placed returns the row that a shard gets for a start: the fence, or a redirect row to its shard.
func placed(start epoch.Start, in, home int) epoch.Start {
	if in != home {
		start.Origin = redirect(start.Origin, home)
	}
	return start
}

// as returns a start like a shard's row, fence or redirect row. Its log is the row's too: if the
// topic was recreated since, the fence shows it.
func as(row epoch.Fence, leases string) epoch.Start {
	at := epoch.Position{Offset: row.Next, Mark: row.Mark}
	return epoch.Start{Origin: epoch.Origin{Partition: row.Partition, Log: logOf(row), Source: leases}, Next: at, Earliest: at}
}
