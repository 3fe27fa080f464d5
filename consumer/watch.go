package consumer

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/waits"
)

// This file finds what no transaction shows; failover finds dead processes. It decides when the fences of idle
// partitions are read, and ends the claims that are not in the sink any more (L4): partitions with messages
// notice that by their commits, or before they try again. It decides when operators' requests are read.
// next.go decides what follows for a claim, replays.go for a dead letter.

// watch reads from time to time the fences of the partitions of a shard that have had nothing to commit
// for a while. A commit detects a changed fence by itself. Without commits, nobody would notice that the
// sink went back or that the claim is lost.
type watch struct {
	run     *runner
	shard   int
	changed chan struct{} // the next look is due at another time

	mu   sync.Mutex
	held map[*partition]struct{} // whose claims are consumed
	all  bool                    // look at all idle partitions, not only those that were idle last time
	next time.Time
	rest time.Time // no look at all of them before
	last time.Time // when the last look began
}

const (
	// lookAtOnce limits the fences in one read of the sink.
	lookAtOnce = 1000

	// lookRest is the least time between two looks at all partitions.
	lookRest = time.Second
)

func newWatch(r *runner, shard int) *watch {
	return &watch{run: r, shard: shard, changed: make(chan struct{}, 1), held: map[*partition]struct{}{}}
}

// add takes over a partition whose claim is consumed from now on. The first one sets the time of
// the next look.
func (w *watch) add(p *partition) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.held[p] = struct{}{}
	if len(w.held) == 1 {
		w.next = time.Now().Add(w.interval())
		waits.Notify(w.changed)
	}
}

func (w *watch) remove(p *partition) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.held, p)
}

// lookAtAll makes the next look cover all idle partitions, at once: the sink may have gone back.
func (w *watch) lookAtAll() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.all = len(w.held) > 0
	waits.Notify(w.changed)
}

// interval returns the time to the next look. A partition that becomes idle is looked at within 4/3
// of its term. Jitter keeps processes apart that started together.
func (w *watch) interval() time.Duration {
	var least time.Duration
	for p := range w.held {
		if term := p.tenure.Term(); least == 0 || term < least {
			least = term
		}
	}
	return least/3 + rand.N(least/3+1)
}

// due returns how soon the next look begins, if there is anything to look at.
func (w *watch) due() (in time.Duration, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	at := w.next
	if w.all {
		at = w.rest
	}
	return max(time.Until(at), 1), len(w.held) > 0
}

// serve looks when it is due, until ctx ends. One look is under way at a time: a sink that answers slowly
// gets no second one. Another server, such as a promoted standby, that takes over the database may lack the
// last commits.
func (w *watch) serve(ctx context.Context) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	replaced := w.run.shards.ReplacedIn(w.shard)
	for {
		if in, ok := w.due(); ok {
			timer.Reset(in)
		} else {
			timer.Stop()
		}
		select {
		case <-ctx.Done():
			return
		case <-w.changed:
		case <-replaced:
			replaced = w.run.shards.ReplacedIn(w.shard) // before the look, so that a change during the look is not missed
			w.lookAtAll()
		case <-timer.C:
			w.look(ctx)
		}
	}
}

// idler is an idle partition as it was when the look began. One that has moved since is not compared: its
// own transaction has compared it.
type idler struct {
	p     *partition
	was   epoch.Fence
	times int
}

// look reads the fences of partitions that have been idle since the last look, or of all that are idle.
func (w *watch) look(ctx context.Context) {
	idlers := w.idlers(time.Now())
	for chunk := range slices.Chunk(idlers, lookAtOnce) {
		ps := make([]epoch.Partition, len(chunk))
		for i, d := range chunk {
			ps[i] = d.was.Partition
		}
		ctx, cancel := context.WithTimeout(ctx, idlers[0].p.tenure.Term())
		now, err := w.run.effects.Look(ctx, ps)
		cancel()
		if err != nil { // which proves nothing
			w.run.Logger.Debug("could not look at the fences of idle partitions", "partitions", len(ps), "err", err)
			continue
		}
		for _, d := range chunk {
			d.compare(now)
		}
	}
}

func (w *watch) idlers(now time.Time) (found []idler) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for p := range w.held {
		p.mu.Lock()
		if p.rest.on && (w.all || p.rest.since.Before(w.last)) {
			found = append(found, idler{p, p.fence, p.rest.times})
		}
		p.mu.Unlock()
	}
	if w.all {
		w.all, w.rest = false, now.Add(lookRest)
	}
	w.last, w.next = now, now.Add(w.interval())
	return found
}

// compare ends the claim of a partition whose fence has changed. The lock keeps the events in order.
func (d idler) compare(now epoch.Fences) {
	p := d.p
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.rest.on || p.rest.times != d.times {
		return // a transaction or a claim checks the fence, or has checked it
	}
	f, err := now.Read(d.was.Partition)
	if err == nil {
		err = d.was.CheckUnchanged(f)
	}
	if err != nil {
		p.claim.breakWith(foundOut(err))
		return
	}
	p.report.resumed(p.fence)
}

// foundOut returns the outcome of a look that found another fence, or none. Its field looked says
// that no transaction was refused.
func foundOut(err error) outcome {
	v, p := refusal(err)
	if p == (epoch.Partition{}) {
		return outcome{action: claimAgain, err: err}
	}
	return outcome{action: v.action, err: err, looked: true}
}

// requests polls the sink of a shard for what operators have requested: actions on fences, which an
// owner may not notice by itself for long, and replays of dead letters.
type requests struct {
	run    *runner
	shard  int
	sink   records
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

// poll polls until ctx ends, and only while this process has partitions of the shard.
func (q *requests) poll(ctx context.Context) {
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
func (q *requests) once(ctx context.Context, ps []epoch.Partition) {
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
		if p := q.run.ownerOf(r.Message.Partition); p != nil {
			p.requested(replay{RequestedReplay: r, look: look, from: q})
		}
	}
}

// looks returns how many looks have begun.
func (q *requests) looks() int64 { return q.began.Load() }

// again makes the next look begin at once.
func (q *requests) again() { waits.Notify(q.now) }
