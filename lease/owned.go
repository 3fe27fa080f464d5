package lease

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/internal/waits"
)

// This file decides whether an item is still ours after a write whose answer was lost, and how long
// we may rely on it by our own clock (R11, R13). The values are the callers'.

// owned is an item that this process holds: a lease, or the registration that its leases name. Each
// renewal replaces it.
type owned struct {
	store cas.Store
	key   string
	nonce string
	since time.Time
	ttl   time.Duration
	dies  bool          // the store may delete the item after ttl, if it can
	sem   chan struct{} // holds a token while a request is under way

	// Guarded by sem.
	item    cas.Item // as our last write has left it
	doubt   bool     // the outcome of the last request is not known
	refused bool     // the store has another version than item's
	adopted int      // how often the store had another version of ours
	over    bool     // the item was released or removed

	mu         sync.Mutex
	generation int64
	deadline   time.Time // on our monotonic clock
}

func newOwned(store cas.Store, key string, ttl time.Duration) *owned {
	return &owned{store: store, key: key, item: cas.Item{Key: key}, nonce: rand.Text(), since: time.Now(), ttl: ttl, sem: make(chan struct{}, 1)}
}

// value returns the new value of an item, with the generation that follows.
type value func(generation int64) []byte

// acquire takes an item that nobody holds, or this process without knowing it, if it is still as
// seen. After [cas.ErrConflict] it returns the item that it found instead.
func (o *owned) acquire(ctx context.Context, seen cas.Item, v value) (cas.Item, error) {
	sent := time.Now()
	limited, cancel := o.soon(ctx)
	item, err := o.swap(limited, seen, v)
	cancel()
	if err == nil {
		o.wrote(item, sent)
		return item, nil
	}
	now, gerr := o.get(ctx)
	if gerr != nil {
		return cas.Item{}, fmt.Errorf("%w, and what the key holds could not be learnt: %w", err, gerr)
	}
	if !o.isOurs(now) {
		return now, err
	}
	// The write succeeded, but its answer was lost or it was sent twice. Its time is not known, so
	// only a renewal starts the clock.
	o.item = now
	return o.renew(ctx, v)
}

// renew replaces the item. It returns [ErrLost] if the item is known to be another's. After any
// other error, the caller may call it again.
func (o *owned) renew(ctx context.Context, v value) (cas.Item, error) {
	var item cas.Item
	err := o.change(ctx, func(ctx context.Context) (err error) {
		sent := time.Now()
		if item, err = o.swap(ctx, o.item, v); err == nil {
			o.wrote(item, sent)
		}
		return err
	})
	return item, err
}

// release replaces the item for the last time.
func (o *owned) release(ctx context.Context, v value) (cas.Item, error) {
	var item cas.Item
	err := o.change(ctx, func(ctx context.Context) (err error) {
		item, err = o.swap(ctx, o.item, v)
		o.over = err == nil
		return err
	})
	return item, err
}

// remove deletes the item.
func (o *owned) remove(ctx context.Context) error {
	return o.change(ctx, func(ctx context.Context) error {
		err := o.store.Delete(ctx, o.item)
		o.over = err == nil
		return err
	})
}

// change calls do until it has written the item, or is known to be unable to.
func (o *owned) change(ctx context.Context, do func(context.Context) error) error {
	if err := o.enter(ctx); err != nil {
		return err
	}
	defer o.leave()
	if o.over {
		return lost(errEnded)
	}
	for {
		if err := o.resolve(ctx); err != nil {
			return err
		}
		limited, cancel := o.soon(ctx)
		err := do(limited)
		cancel()
		if err == nil {
			return nil
		}
		// After a conflict somebody else has the item, or an earlier request landed late. The store
		// knows which.
		o.doubt, o.refused = true, errors.Is(err, cas.ErrConflict)
		if !o.refused {
			return err
		}
	}
}

func (o *owned) swap(ctx context.Context, seen cas.Item, v value) (cas.Item, error) {
	next := max(generationOf(seen), o.latest()) + 1
	return o.put(ctx, seen, pad(v(next), len(seen.Version)+len(strconv.FormatInt(next, 10))))
}

func (o *owned) put(ctx context.Context, seen cas.Item, value []byte) (cas.Item, error) {
	if o.dies {
		return swapFor(ctx, o.store, seen, value, o.ttl)
	}
	return o.store.Swap(ctx, seen, value, nil)
}

// swapFor replaces an item for some time, where the store can delete it then.
func swapFor(ctx context.Context, s cas.Store, seen cas.Item, value []byte, ttl time.Duration) (cas.Item, error) {
	if e, ok := s.(cas.Expirer); ok {
		return e.SwapFor(ctx, seen, value, ttl)
	}
	return s.Swap(ctx, seen, value, nil)
}

// pad keeps renewals at one size, so that a store that is full still takes them. beside counts the
// bytes in and beside the value that grow with each write.
func pad(value []byte, beside int) []byte {
	const most = 40 // of a version and a generation, where they grow
	return append(value, bytes.Repeat([]byte{' '}, max(0, most-beside))...)
}

func (o *owned) get(ctx context.Context) (cas.Item, error) {
	ctx, cancel := o.soon(ctx)
	defer cancel()
	return o.store.Get(ctx, o.key)
}

// soon limits one request, so that a lost answer leaves time for other requests.
func (o *owned) soon(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, min(max(o.ttl/6, 500*time.Millisecond), o.ttl/3))
}

func (o *owned) wrote(item cas.Item, sent time.Time) {
	o.item, o.doubt, o.refused = item, false, false
	o.mu.Lock()
	defer o.mu.Unlock()
	o.generation, o.deadline = generationOf(item), sent.Add(term(o.ttl))
}

// resolve asks the store for the outcome of a request in doubt. An adopted item does not move the
// deadline, because it may have been written at any time since the request.
func (o *owned) resolve(ctx context.Context) error {
	if !o.doubt {
		return nil
	}
	now, err := o.get(ctx)
	// An answer may be older than the refusal. After a while it is not: the store has lost the write in
	// between.
	for n := 0; n < lags && err == nil && o.refused && now.Version == o.item.Version; n++ {
		if !waits.Sleep(ctx, min(o.ttl/100, 50*time.Millisecond)) {
			return ctx.Err()
		}
		now, err = o.get(ctx)
	}
	switch {
	case err != nil:
		return fmt.Errorf("read the key again: %w", err)
	case !o.isOurs(now):
		return lost(taken(now))
	}
	if o.item.Version != now.Version {
		o.adopted++
	}
	o.item, o.doubt, o.refused = now, false, false
	o.mu.Lock()
	defer o.mu.Unlock()
	o.generation = max(o.generation, generationOf(now))
	return nil
}

// lags limits how often a store is asked again whose answers may lag.
const lags = 10

func (o *owned) isOurs(now cas.Item) bool {
	var r struct{ Nonce string }
	return now.Live && json.Unmarshal(now.Value, &r) == nil && r.Nonce == o.nonce
}

func taken(now cas.Item) error {
	if !now.Live {
		return fmt.Errorf("%w: the key is gone", errTaken)
	}
	r, ok := leaseOf(now.Value)
	switch {
	case !ok:
		return fmt.Errorf("%w: the key holds something else", errTaken)
	case r.Member == "":
		return fmt.Errorf("%w: it was released", errTaken)
	}
	return fmt.Errorf("%w: member %s (%s) holds it", errTaken, r.Member, r.Owner)
}

func (o *owned) enter(ctx context.Context) error {
	select {
	case o.sem <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (o *owned) leave() { <-o.sem }

// left returns how much of the term is certain to remain.
func (o *owned) left() time.Duration {
	o.mu.Lock()
	defer o.mu.Unlock()
	return time.Until(o.deadline)
}

func (o *owned) latest() int64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.generation
}

// term returns how long a registration outlives its last renewal on our own clock. It is shorter
// than the TTL, so that leases end before other members take them.
func term(ttl time.Duration) time.Duration { return ttl * 9 / 10 }
