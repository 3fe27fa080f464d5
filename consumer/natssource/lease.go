package natssource

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/epochfence/epochfence/consumer/internal/tenures"
)

// record is the value of a lease's key. Member and Nonce are compared, the owner is for
// operators.
type record struct {
	Owner  string `json:"owner"`
	Member string `json:"member"` // whose registration says for how long
	Nonce  string `json:"nonce"`  // of the tenure
}

// heldKey is a key of the bucket that we hold: a lease, whose revision is its generation, or the
// registration that our leases name. Every renewal gives it another revision.
type heldKey struct {
	bucket *bucket
	key    string
	nonce  string
	ttl    time.Duration // after which the bucket lets it go; 0: it does not
	turn   chan struct{} // holds a token while a request is under way

	// Guarded by turn.
	rev     revision
	inDoubt bool // what the last request did is not known
	adopted int  // how often the bucket was found to have another revision of ours

	mu       sync.Mutex
	deadline time.Time // on our monotonic clock
}

func newHeldKey(b *bucket, key string, ttl time.Duration) *heldKey {
	return &heldKey{bucket: b, key: key, nonce: rand.Text(), ttl: ttl, turn: make(chan struct{}, 1)}
}

// acquire takes a key over that is at the revision last, where nobody holds it, or we do and no tenure
// of ours knows. On [errSwapped] what the leader has
// instead is returned with it.
func (l *heldKey) acquire(ctx context.Context, last revision, value []byte) (entry, error) {
	sent := time.Now()
	first, cancel := l.soon(ctx)
	rev, err := l.bucket.swap(first, l.key, value, last, l.ttl)
	cancel()
	if err == nil {
		l.rev = rev
		l.extend(sent)
		return entry{}, nil
	}
	now, gerr := l.bucket.get(ctx, l.key)
	if gerr != nil {
		return entry{}, fmt.Errorf("%w, and what the key holds could not be learnt: %w", err, gerr)
	}
	if !l.isOurs(now) {
		return now, err
	}
	// The request had been carried out, though its answer is lost or it was
	// sent twice. When that was is not known: only a renewal starts the clock.
	l.rev = now.rev
	_, err = l.renew(ctx, func() []byte { return value })
	return now, err
}

// renew writes the value anew, which extends a key with a TTL. The error is [consumer.ErrLost] if it is known to be
// gone; after any other, ask again.
func (l *heldKey) renew(ctx context.Context, value func() []byte) (revision, error) {
	if err := l.enter(ctx); err != nil {
		return 0, err
	}
	defer l.leave()
	for {
		if err := l.resolve(ctx); err != nil {
			return 0, err
		}
		sent := time.Now()
		rev, err := l.swap(ctx, value())
		if err == nil {
			l.rev = rev
			l.extend(sent)
			return rev, nil
		}
		l.inDoubt = true
		if !errors.Is(err, errSwapped) {
			return 0, err
		}
		// Either somebody else has it, or an earlier request of ours landed
		// late. The leader tells.
	}
}

func (l *heldKey) swap(ctx context.Context, value []byte) (revision, error) {
	ctx, cancel := l.soon(ctx)
	defer cancel()
	return l.bucket.swap(ctx, l.key, value, l.rev, l.ttl)
}

// soon bounds one request, so that one whose answer is lost leaves time for
// others.
func (l *heldKey) soon(ctx context.Context) (context.Context, context.CancelFunc) {
	ttl := l.bucket.ttl
	return context.WithTimeout(ctx, min(max(ttl/6, 500*time.Millisecond), ttl/3))
}

// release gives the key back, if it is ours still.
func (l *heldKey) release(ctx context.Context) (revision, error) {
	if err := l.enter(ctx); err != nil {
		return 0, err
	}
	defer l.leave()
	for {
		if err := l.resolve(ctx); err != nil {
			return 0, err
		}
		rev, err := l.bucket.release(ctx, l.key, l.rev)
		if err == nil {
			return rev, nil
		}
		l.inDoubt = true
		if !errors.Is(err, errSwapped) {
			return 0, err
		}
	}
}

// resolve finds out, where the outcome of a request is not known, what became of
// it. A revision that is adopted does not move the deadline: the bucket may
// have written it at any time since.
func (l *heldKey) resolve(ctx context.Context) error {
	if !l.inDoubt {
		return nil
	}
	ctx, cancel := l.soon(ctx)
	defer cancel()
	now, err := l.bucket.get(ctx, l.key)
	switch {
	case errors.Is(err, errNoBucket):
		return tenures.Lost(err)
	case err != nil:
		return fmt.Errorf("look at the key: %w", err)
	case !l.isOurs(now):
		return tenures.Lost(taken(now))
	}
	if l.rev != now.rev {
		l.adopted++
	}
	l.rev, l.inDoubt = now.rev, false
	return nil
}

func (l *heldKey) isOurs(e entry) bool {
	var r record
	return e.live && json.Unmarshal(e.value, &r) == nil && r.Nonce == l.nonce
}

// taken says what is in the key's place.
func taken(now entry) error {
	var r record
	switch {
	case now.rev == 0:
		return fmt.Errorf("%w: the key is gone", errTaken)
	case now.expired:
		return fmt.Errorf("%w: its TTL ran out", errTaken)
	case !now.live:
		return fmt.Errorf("%w: it was deleted", errTaken)
	case json.Unmarshal(now.value, &r) != nil:
		return fmt.Errorf("%w: the key holds something else", errTaken)
	}
	return fmt.Errorf("%w: member %s (%s) holds it", errTaken, r.Member, r.Owner)
}

func (l *heldKey) enter(ctx context.Context) error {
	select {
	case l.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (l *heldKey) leave() { <-l.turn }

// extend notes that a renewal sent at that time was acknowledged. The bucket
// counts the TTL from when it wrote it, which is later.
func (l *heldKey) extend(sent time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.deadline = sent.Add(term(l.bucket.ttl))
}

// left is how much of the TTL is certain to remain.
func (l *heldKey) left() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return time.Until(l.deadline)
}

// term is how long a registration outlives the last renewal on our own clock: short of
// the TTL, so that tenures are over before the bucket lets anybody else in.
func term(ttl time.Duration) time.Duration { return ttl * 9 / 10 }
