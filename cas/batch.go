package cas

import (
	"context"
	"fmt"

	"golang.org/x/sync/errgroup"
)

// This file writes several items at a time, with every store.

// Write is what [Store.Swap] gets for one item.
type Write struct {
	Seen        Item
	Value, Note []byte
}

// Written is what [Store.Swap] returns for one item.
type Written struct {
	Item Item
	Err  error
}

// sideBySide limits the requests of one call of SwapAll that are sent beside each other.
const sideBySide = 32

// SwapAll replaces items as [BatchSwapper.SwapAll] does: in one request if the store can do that, and
// otherwise several at a time. Of the writes of one key, it makes the first, and the others return [ErrConflict].
func SwapAll(ctx context.Context, s Store, writes []Write) []Written {
	results := make([]Written, len(writes))
	given := make(map[string]bool, len(writes))
	var once []Write
	var place []int
	for i, w := range writes {
		if given[w.Seen.Key] {
			results[i].Err = fmt.Errorf("cas: swap %q: it is written twice in one call: %w", w.Seen.Key, ErrConflict)
			continue
		}
		given[w.Seen.Key] = true
		once, place = append(once, w), append(place, i)
	}
	for i, r := range swapAll(ctx, s, once) {
		results[place[i]] = r
	}
	return results
}

func swapAll(ctx context.Context, s Store, writes []Write) []Written {
	if b, ok := s.(BatchSwapper); ok && len(writes) > 1 {
		return b.SwapAll(ctx, writes)
	}
	return OneByOne(ctx, s, writes)
}

// OneByOne calls Swap for each of the writes, several at a time. It is for drivers.
func OneByOne(ctx context.Context, s Store, writes []Write) []Written {
	results := make([]Written, len(writes))
	var writers errgroup.Group
	writers.SetLimit(sideBySide)
	for i, w := range writes {
		writers.Go(func() error {
			r := &results[i]
			r.Item, r.Err = s.Swap(ctx, w.Seen, w.Value, w.Note)
			return nil
		})
	}
	_ = writers.Wait()
	return results
}
