package shardsink

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/operate"
)

// This file decides whether the rows of a partition in all databases agree about its shard.
// seed.go and claim.go read and write the rows.

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
		if rows[i], err = epoch.Look(ctx, shard, ps); err != nil {
			return nil, fmt.Errorf("look into shard %d: %w", i, err)
		}
	}
	return rows, nil
}
