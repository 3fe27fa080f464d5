package castest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/epochfence/epochfence/cas"
)

// killed has clients append words to one item, while the server or the leader is killed in between.
func killed(w *world) {
	const kills, each = 3, 40 // each is the number of acknowledged writes between two kills
	l := &ledger{acknowledged: map[string]bool{}, more: make(chan struct{}, 1)}
	ctx, cancel := context.WithCancel(w.ctx)
	defer cancel()
	var writers sync.WaitGroup
	for i := range clients {
		c := w.client()
		writers.Go(func() { l.write(ctx, c, i) })
	}
	for n := range kills {
		w.NoErrorf(l.await(w.ctx, (n+1)*each), "after %d kills", n)
		w.rig.Kill(w)
	}
	err := l.await(w.ctx, (kills+1)*each)
	cancel()
	writers.Wait()
	w.NoErrorf(err, "after %d kills", kills)
	words := strings.Fields(string(w.settled(w.client(), cas.Item{Key: "ledger"}).Value))
	count := map[string]int{}
	for _, word := range words {
		count[word]++
	}
	for word, n := range count {
		w.Wantf(n <= 1, "%s is there %d times", word, n)
	}
	for word := range l.acknowledged {
		w.Wantf(count[word] != 0, "%s was acknowledged and is lost", word)
	}
}

// ledger is what writers know of their writes.
type ledger struct {
	mu           sync.Mutex
	acknowledged map[string]bool
	last         error
	more         chan struct{}
}

func (l *ledger) write(ctx context.Context, c client, writer int) {
	for n := 0; ctx.Err() == nil; n++ {
		word := fmt.Sprintf("%d.%d", writer, n)
		err := appendWord(ctx, c, word)
		l.mu.Lock()
		if err == nil {
			l.acknowledged[word] = true
		} else {
			l.last = err
		}
		l.mu.Unlock()
		select {
		case l.more <- struct{}{}:
		default:
		}
	}
}

// appendWord tries again after a conflict alone: another error leaves the word in doubt.
func appendWord(ctx context.Context, c client, word string) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	for {
		seen, err := c.Get(ctx, "ledger")
		if err != nil {
			return err
		}
		_, err = c.Swap(ctx, seen, []byte(string(seen.Value)+word+" "), nil)
		if !errors.Is(err, cas.ErrConflict) {
			return err
		}
	}
}

// await waits for a number of acknowledged writes.
func (l *ledger) await(ctx context.Context, want int) error {
	for {
		l.mu.Lock()
		n, last := len(l.acknowledged), l.last
		l.mu.Unlock()
		if n >= want {
			return nil
		}
		select {
		case <-l.more:
		case <-ctx.Done():
			return fmt.Errorf("%d writes were acknowledged, not %d; the last error is: %w", n, want, last)
		}
	}
}
