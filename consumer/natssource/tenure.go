package natssource

import (
	"context"
	"fmt"
	"iter"
	"sync"
	"sync/atomic"
	"time"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
)

// tenure is one time with one partition, under one lease.
type tenure struct {
	place
	s      *Source
	log    *streamLog
	life   incarnation // of the stream
	origin epoch.Origin
	lease  *lease

	ctx      context.Context // ends when the partition is lost, with the cause
	cancel   context.CancelCauseFunc
	draining chan struct{}
	asked    func()        // closes draining
	done     chan struct{} // closed when own has returned
	reading  atomic.Bool
	writing  chan struct{} // holds a token while the position is being published

	mu        sync.Mutex
	position  epoch.Fence
	known     bool          // there is a position
	published *epoch.Offset // what the position's key has, as far as we know
	learnt    bool          // what it had when the tenure began
	before    *epoch.Offset // that, if it is not ours to take back
	said      bool          // that ours is below it
}

var _ consumer.Tenure = (*tenure)(nil)

func (s *Source) newTenure(p place, log *streamLog, l *lease) *tenure {
	t := &tenure{
		place: p, s: s, log: log, life: log.incarnation(), lease: l,
		draining: make(chan struct{}), done: make(chan struct{}), writing: make(chan struct{}, 1),
	}
	t.origin = t.originOf(p.number)
	t.ctx, t.cancel = context.WithCancelCause(s.base)
	t.asked = sync.OnceFunc(func() { close(t.draining) })
	return t
}

func (t *tenure) originOf(n int32) epoch.Origin {
	return epoch.Origin{
		Partition: epoch.Partition{Group: t.s.Group, Topic: t.stream, Number: n},
		Log:       t.log.logID(t.life, n),
		Source:    t.s.bucket.source(),
	}
}

// Origin implements [consumer.Tenure].
func (t *tenure) Origin() epoch.Origin { return t.origin }

// Term implements [consumer.Tenure].
func (t *tenure) Term() time.Duration { return term(t.s.LeaseTTL) }

// Draining implements [consumer.Tenure].
func (t *tenure) Draining() <-chan struct{} { return t.draining }

// Starts implements [consumer.Tenure].
func (t *tenure) Starts(ctx context.Context, policy consumer.StartPolicy) ([]epoch.Start, error) {
	return t.log.starts(ctx, t.life, t.originOf, policy)
}

// Read implements [consumer.Tenure].
func (t *tenure) Read(ctx context.Context, from epoch.Fence) iter.Seq2[consumer.Batch, error] {
	return func(yield func(consumer.Batch, error) bool) {
		if !t.reading.CompareAndSwap(false, true) {
			yield(consumer.Batch{}, errReading)
			return
		}
		defer t.reading.Store(false)
		if err := from.Check(t.origin); err != nil {
			yield(consumer.Batch{}, fmt.Errorf("natssource: read: %w", err))
			return
		}
		ctx, cancel := t.whileHeld(ctx)
		defer cancel()
		for ms, err := range t.log.read(ctx, t.life, t.origin.Partition, from) {
			if ctx.Err() != nil {
				return
			}
			if !yield(ms, err) || err != nil {
				return
			}
		}
	}
}

// whileHeld ends when the partition is lost, or revoked.
func (t *tenure) whileHeld(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	if t.isDraining() || t.ctx.Err() != nil {
		cancel()
		return ctx, cancel
	}
	go func() {
		select {
		case <-t.draining:
			cancel()
		case <-t.ctx.Done():
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, cancel
}

// Mirror implements [consumer.Tenure].
func (t *tenure) Mirror(at epoch.Fence) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.position, t.known = at, true
}

// drain revokes the partition. A drain that takes longer than the term
// costs the tenure.
func (t *tenure) drain() {
	t.asked()
	overrun := time.AfterFunc(t.Term(), func() {
		if !t.ended() {
			t.s.log.Error("the partition was not given back in time; its transaction is cancelled", "stream", t.stream, "partition", t.number)
			t.lose(errDrainOverrun)
		}
	})
	context.AfterFunc(t.ctx, func() { overrun.Stop() })
}

func (t *tenure) isDraining() bool { return isClosed(t.draining) }

func (t *tenure) ended() bool { return isClosed(t.done) }

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// lose cancels the tenure: nothing can commit any more.
func (t *tenure) lose(why error) { t.cancel(lost(why)) }

// over returns why the tenure no longer holds, or nil. It does not wait for a
// timer to notice that the lease ran out: a process that was stopped finds the
// timer due, and may get here first.
func (t *tenure) over() error {
	if t.ctx.Err() == nil && t.lease.left() <= 0 {
		t.lose(errRanOut)
	}
	if t.ctx.Err() != nil {
		return lost(context.Cause(t.ctx))
	}
	if t.ended() {
		return lost(errEnded)
	}
	return nil
}

// record is what the lease's key is to hold now.
func (t *tenure) record() []byte {
	r := t.s.newRecord(t.lease.nonce)
	t.mu.Lock()
	if t.known {
		r.Epoch, r.Next = t.position.Epoch, t.position.Next
	}
	t.mu.Unlock()
	r.Lag = t.log.lag(t.number)
	return r.json()
}
