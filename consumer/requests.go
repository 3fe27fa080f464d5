package consumer

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/waits"
	"github.com/epochfence/epochfence/operate"
)

// This file polls the sink for what operators have requested, and wakes whom it concerns.
// replays.go replays dead letters; ownership.go and idle.go read what an action has done to a
// fence.

// requests polls the sink of a shard for what operators have requested: actions on fences, which an
// owner may not notice by itself for long, and replays of dead letters.
type requests[TX any] struct {
	run    *runner[TX]
	shard  int
	sink   *operate.Records[TX]
	began  atomic.Int64  // how many looks have begun
	now    chan struct{} // requests a look now
	acts   int64
	known  bool
	failed int // looks, in a row
}

const (
	// requestsEvery is the least time between two looks. Up to half of it is added as jitter, so
	// that processes come apart that started together.
	requestsEvery = 2 * time.Second

	requestsTimeout = 15 * time.Second

	failedLooks = 5
)

// look polls until ctx ends, and only while this process has partitions of the shard.
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

// once asks the sink one time. The number of actions on fences is compared, not their content:
// whoever is woken reads the fence itself. Failures are logged once: operators can wait, messages
// do not.
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
		q.run.acted.Fire()
		q.run.lookAtAll()
	}
	q.acts, q.known = found.Acts, true
	for _, r := range found.Replays {
		if o := q.run.ownerOf(r.Message.Partition); o != nil {
			o.loop.send(replayRequested[TX]{o.tenancy, replay{RequestedReplay: r, look: look, from: q}})
		}
	}
}

// looks returns how many looks have begun.
func (q *requests[TX]) looks() int64 { return q.began.Load() }

// again makes the next look begin at once.
func (q *requests[TX]) again() {
	waits.Notify(q.now)
}
