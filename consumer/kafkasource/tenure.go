package kafkasource

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
)

// tenure is one time with one partition, under one membership.
type tenure struct {
	place
	s      *Source
	member string // the member id it was granted to
	began  time.Time

	ctx      context.Context // ends when the partition is lost, with the cause
	cancel   context.CancelCauseFunc
	draining chan struct{}
	drain    func()
	previous <-chan struct{} // closed when the tenure before has ended
	done     chan struct{}   // closed when own has returned
	reading  atomic.Bool

	mu        sync.Mutex
	id        [16]byte // of the topic, zero until it is known
	feed      *feed    // of the Read under way, or of the last one
	position  epoch.Fence
	known     bool       // there is a position
	published int64      // what the group has, as far as we know; -1 for unknown
	learnt    bool       // what the group had when the tenure began
	before    *committed // that, if it is others' and we have not passed it
	said      bool       // that ours is below it
}

var _ consumer.Tenure = (*tenure)(nil)

func (s *Source) newTenure(p place, member string, previous <-chan struct{}) *tenure {
	t := &tenure{
		place: p, s: s, member: member, began: time.Now(), previous: previous,
		draining: make(chan struct{}), done: make(chan struct{}), published: -1,
	}
	t.ctx, t.cancel = context.WithCancelCause(s.base)
	t.drain = sync.OnceFunc(func() { close(t.draining) })
	return t
}

// run spends the tenure. It ends when own has returned.
func (t *tenure) run(own func(context.Context, consumer.Tenure)) {
	defer close(t.done)
	if t.previous != nil {
		select {
		case <-t.previous: // the same process never works on a partition twice at a time
		case <-t.draining:
			return
		case <-t.ctx.Done():
			return
		}
	}
	if t.prepare() {
		own(t.ctx, t)
	}
	if t.ctx.Err() == nil && !t.isDraining() {
		t.s.log.Info("gave up the partition; it stays idle until the group moves it", "topic", t.topic, "partition", t.number)
	}
}

// prepare learns which log the partition is of, as of now. It returns false if
// the tenure ended before that was known.
func (t *tenure) prepare() bool {
	ctx, cancel := t.whileHeld(t.ctx)
	defer cancel()
	for pause := leastPause; ; pause = min(2*pause, mostPause) {
		id, err := t.s.topics.fresh(ctx, t.topic, t.began)
		if err == nil {
			t.mu.Lock()
			t.id = id
			t.mu.Unlock()
			return true
		}
		if ctx.Err() != nil {
			return false
		}
		t.s.log.Warn("cannot start with the partition yet", "topic", t.topic, "partition", t.number, "err", err)
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return false
		}
	}
}

// whileHeld ends when the partition is revoked, too.
func (t *tenure) whileHeld(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		select {
		case <-t.draining:
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, cancel
}

func (t *tenure) isDraining() bool {
	select {
	case <-t.draining:
		return true
	default:
		return false
	}
}

func (t *tenure) ended() bool {
	select {
	case <-t.done:
		return true
	default:
		return false
	}
}

// lose cancels the tenure: nothing can commit any more.
func (t *tenure) lose(why error) { t.cancel(lost(why)) }

// over returns why the tenure no longer holds, or nil.
func (t *tenure) over() error {
	if t.ctx.Err() == nil && t.s.contact.overdue() {
		t.s.contact.expire() // as its timer would, so that it also comes back
		if t.s.contact.overdue() {
			t.lose(errSilence)
		}
	}
	if err := context.Cause(t.ctx); err != nil {
		if !errors.Is(err, consumer.ErrLost) {
			err = lost(err)
		}
		return err
	}
	if t.ended() {
		return lost(errEnded)
	}
	return nil
}

func (t *tenure) topicID() [16]byte {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.id
}

// Origin implements [consumer.Tenure]. It does not change: when the topic is
// deleted and created again the tenure is lost, and another one begins.
func (t *tenure) Origin() epoch.Origin { return t.s.origin(t.place, t.topicID()) }

// Term implements [consumer.Tenure].
func (t *tenure) Term() time.Duration { return t.s.contact.lease().term() }

// Draining implements [consumer.Tenure].
func (t *tenure) Draining() <-chan struct{} { return t.draining }

// Mirror implements [consumer.Tenure].
func (t *tenure) Mirror(at epoch.Fence) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.position, t.known = at, true
	if t.before != nil && at.Epoch > 0 && int64(at.Next) < t.before.at && !t.said {
		t.said = true
		t.s.log.Warn("the group has committed more through other consumers than the sink has applied; the sink's position counts, and the group's stays until it is passed",
			"topic", t.topic, "partition", t.number, "committed", t.before.at, "next", at.Next)
	}
}

// unpublished returns the position to commit, if the group has not been told of it.
func (t *tenure) unpublished() (committed, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.known {
		return committed{}, false
	}
	c := t.toCommit(t.position)
	return c, c.at != t.published
}

// publishedAs takes note of what the group has taken.
func (t *tenure) publishedAs(c committed) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.published = c.at
	if c.ours() {
		t.before = nil
	}
}
