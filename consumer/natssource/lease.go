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

// record is the value of a lease's key. Member and Nonce are compared; Owner is for operators.
type record struct {
	Owner  string `json:"owner"`
	Member string `json:"member"` // the registration on which the lease depends
	Nonce  string `json:"nonce"`  // of the tenure
}

// heldKey is a key of the bucket that this process holds: a lease, whose revision is its
// generation, or the registration that its leases name. Each renewal changes the revision.
type heldKey struct {
	bucket *bucket
	key    string
	nonce  string
	ttl    time.Duration // after which the bucket drops the key; 0: never
	turn   chan struct{} // holds a token while a request is under way

	// Guarded by turn.
	rev     revision
	inDoubt bool // the outcome of the last request is not known
	adopted int  // how often the bucket had another revision of ours

	mu       sync.Mutex
	deadline time.Time // on our monotonic clock
}

func newHeldKey(b *bucket, key string, ttl time.Duration) *heldKey {
	return &heldKey{bucket: b, key: key, nonce: rand.Text(), ttl: ttl, turn: make(chan struct{}, 1)}
}

// acquire takes a key that is at the revision last, where nobody holds it, or this process does
// without a tenure. With [errSwapped] it returns the leader's entry.
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
	// The write succeeded, but its answer was lost or it was sent twice. Its time is not known, so
	// only a renewal starts the clock.
	l.rev = now.rev
	_, err = l.renew(ctx, func() []byte { return value })
	return now, err
}

// renew writes the value again, which extends a key with a TTL. It returns [consumer.ErrLost] if
// the key is known to be lost. After any other error, the caller may call it again.
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
		// Somebody else has the key, or an earlier request landed late. The leader knows.
	}
}

func (l *heldKey) swap(ctx context.Context, value []byte) (revision, error) {
	ctx, cancel := l.soon(ctx)
	defer cancel()
	return l.bucket.swap(ctx, l.key, value, l.rev, l.ttl)
}

// soon limits one request, so that a lost answer leaves time for other requests.
func (l *heldKey) soon(ctx context.Context) (context.Context, context.CancelFunc) {
	ttl := l.bucket.ttl
	return context.WithTimeout(ctx, min(max(ttl/6, 500*time.Millisecond), ttl/3))
}

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

// resolve asks the leader for the outcome of a request in doubt. An adopted revision does not move
// the deadline, because the bucket may have written it at any time since the request.
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

// extend records that a renewal sent at that time was acknowledged. The bucket counts the TTL from
// when it stored the renewal, which is later.
func (l *heldKey) extend(sent time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.deadline = sent.Add(term(l.bucket.ttl))
}

// left returns how much of the TTL is certain to remain.
func (l *heldKey) left() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return time.Until(l.deadline)
}

// term returns how long a registration outlives its last renewal on our own clock. It is shorter
// than the TTL, so that tenures end before the bucket lets anybody else in.
func term(ttl time.Duration) time.Duration { return ttl * 9 / 10 }
