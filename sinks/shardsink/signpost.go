package shardsink

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/epochfence/epochfence/epoch"
)

// pointing is what the log of a signpost begins with, before the shard's number.
// The log of the messages is in its lease source.
const pointing = epoch.SignpostLog

// signpost is the origin of a row that says in which shard a partition is.
func signpost(of epoch.Origin, home int) epoch.Origin {
	return epoch.Origin{Partition: of.Partition, Log: pointing + strconv.Itoa(home), Source: of.Log}
}

func isSignpost(f epoch.Fence) bool { return strings.HasPrefix(f.Log, pointing) }

// logOf is the log of the messages, be the row a fence or a signpost.
func logOf(row epoch.Fence) string {
	if isSignpost(row) {
		return row.Source
	}
	return row.Log
}

// agrees returns nil if the row of a partition that is found in a shard is what it
// has to be for a partition whose home is this one: the fence there, and a
// signpost to it anywhere else.
func agrees(row epoch.Fence, in, home int) error {
	what := fmt.Sprintf("has its fence, at offset %d under epoch %d", row.Next, row.Epoch)
	if isSignpost(row) {
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

// agree returns nil if all rows of p do that there are.
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

// rows looks at ps in all shards.
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
