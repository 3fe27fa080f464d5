package shardsink

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/operate"
)

// This file decides where partitions begin, from the rows of the first shard, writes fences and redirect
// rows, and decides whether the rows of a partition in all databases agree about its shard.

// Seed adds the fences that are missing, each in its shard, and redirect rows in the others. The
// rows of the first shard decide where partitions begin. They are written in one transaction,
// redirect rows included, so that one of the processes that start at the same time decides for all,
// and the other shards copy them. A topic is known if any shard has a row of it, and new partitions
// of a known topic begin at the earliest message.
//
// All shards must answer before anything is written. An error may leave rows missing: a repeated call
// writes them. Seed writes nothing for a partition whose fence is in another shard than the
// route's: [Sink.Look] returns [epoch.ErrElsewhere] for it.
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
	decided, err := s.shards[0].Look(ctx, ps)
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

// pointing is the prefix of a redirect row's log id, before the shard's number. The row's lease
// source is the log id of the messages.
const pointing = operate.RedirectLog

// redirect returns the origin of a redirect row to shard home.
func redirect(of epoch.Origin, home int) epoch.Origin {
	return epoch.Origin{Partition: of.Partition, Log: pointing + strconv.Itoa(home), Source: of.Log}
}

func isRedirect(f epoch.Fence) bool { return strings.HasPrefix(f.Log, pointing) }

// logOf returns the log id of the messages, from a fence or a redirect row.
func logOf(row epoch.Fence) string {
	if isRedirect(row) {
		return row.Source
	}
	return row.Log
}

// agrees returns nil if the row in shard in fits a partition of shard home: the fence in home, and
// a redirect row to home in any other shard.
func agrees(row epoch.Fence, in, home int) error {
	what := fmt.Sprintf("has its fence, at offset %d under epoch %d", row.Next, row.Epoch)
	if isRedirect(row) {
		to := strings.TrimPrefix(row.Log, pointing)
		if in != home && to == strconv.Itoa(home) {
			return nil
		}
		what = "says that it is in shard " + to
	} else if in == home {
		return nil
	}
	return fmt.Errorf("%w: it is routed to shard %d, but shard %d %s: the routing or the order of the shards was changed, "+
		"or differs between processes; route the partition back, or move its fence and its effects", epoch.ErrElsewhere, home, in, what)
}

// agree returns nil if all existing rows of p do.
func agree(rows []epoch.Fences, p epoch.Partition, home int) error {
	for in, found := range rows {
		if row, ok := found[p]; ok {
			if err := agrees(row, in, home); err != nil {
				return err
			}
		}
	}
	return nil
}

func (s *Sink[TX]) rows(ctx context.Context, ps []epoch.Partition) ([]epoch.Fences, error) {
	rows := make([]epoch.Fences, len(s.shards))
	for i, shard := range s.shards {
		var err error
		if rows[i], err = shard.Look(ctx, ps); err != nil {
			return nil, fmt.Errorf("look into shard %d: %w", i, err)
		}
	}
	return rows, nil
}
