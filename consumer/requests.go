package consumer

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/operate"
)

// requests look every few seconds what operators have asked of this process: an act on a
// fence, which its owner may not meet with by itself for long, and replays of
// dead letters. There is one for each shard.
type requests[TX any] struct {
	run    *runner[TX]
	shard  int
	sink   operate.Operable[TX]
	began  atomic.Int64  // how many looks have begun
	now    chan struct{} // there may be more than the last look has found
	acts   int64
	known  bool
	failed int // looks, one after the other
}

const (
	// requestsEvery is the least time between two looks, and half of that the most it
	// is late by, so that processes that started together come apart.
	requestsEvery = 2 * time.Second

	requestsTimeout = 15 * time.Second

	// failedLooks is how many one after the other are worth a warning.
	failedLooks = 5
)

// look looks until ctx ends.
func (q *requests[TX]) look(ctx context.Context) {
	for {
		timer := time.NewTimer(requestsEvery + rand.N(requestsEvery/2))
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-q.now:
			timer.Stop()
		case <-timer.C:
		}
		if ps := q.run.owned(q.shard); len(ps) > 0 {
			q.once(ctx, ps)
		}
	}
}

func (q *requests[TX]) once(ctx context.Context, ps []epoch.Partition) {
	ctx, cancel := context.WithTimeout(ctx, requestsTimeout)
	defer cancel()
	look := q.began.Add(1)
	found, err := q.sink.Requests(ctx, ps)
	if err != nil {
		level := slog.LevelDebug
		if q.failed++; q.failed == failedLooks {
			level = slog.LevelWarn
		}
		q.run.Logger.Log(ctx, level, "could not look for what operators ask of the owner of partitions", "partitions", len(ps), "looks", q.failed, "err", err)
		return
	}
	q.failed = 0
	if q.known && found.Acts != q.acts {
		q.run.acted.tell()
		q.run.lookAtAll()
	}
	q.acts, q.known = found.Acts, true
	for _, r := range found.Replays {
		if o := q.run.ownerOf(r.Message.Partition); o != nil {
			o.loop.send(replayRequested[TX]{o.tenancy, replay{r, look, q}})
		}
	}
}

// looks is how many have begun by now.
func (q *requests[TX]) looks() int64 { return q.began.Load() }

// again has the next look begin now.
func (q *requests[TX]) again() {
	select {
	case q.now <- struct{}{}:
	default:
	}
}

// news lets those that wait for something be told of it.
type news struct {
	mu   sync.Mutex
	next chan struct{}
}

// wait returns a channel that is closed by the next tell.
func (n *news) wait() <-chan struct{} {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.next == nil {
		n.next = make(chan struct{})
	}
	return n.next
}

func (n *news) tell() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.next != nil {
		close(n.next)
		n.next = nil
	}
}
