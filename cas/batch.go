package cas

import (
	"context"
	"sync"
)

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

// SwapAll replaces items as [BatchSwapper.SwapAll] does: in one request if the store can do that, and
// otherwise up to 32 at a time. Of several writes of one key, one succeeds at most, and any one.
func SwapAll(ctx context.Context, s Store, writes []Write) []Written {
	if b, ok := s.(BatchSwapper); ok && len(writes) > 1 {
		keys := make(map[string]bool, len(writes))
		for _, w := range writes {
			keys[w.Seen.Key] = true
		}
		if len(keys) == len(writes) {
			return b.SwapAll(ctx, writes)
		}
	}
	results := make([]Written, len(writes))
	var writers sync.WaitGroup
	slots := make(chan struct{}, 32)
	for i, w := range writes {
		slots <- struct{}{}
		writers.Go(func() {
			results[i].Item, results[i].Err = s.Swap(ctx, w.Seen, w.Value, w.Note)
			<-slots
		})
	}
	writers.Wait()
	return results
}
