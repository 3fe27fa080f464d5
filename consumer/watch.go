package consumer

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/waits"
)

// This file looks now and then at partitions that do not move. It decides when the fences of those with
// nothing to commit are read, and ends the claims that are not in the sink any more (L4): partitions with
// messages notice that by their commits, or before they try again. next.go decides what follows. And it decides
// when the source is asked for the lag of a partition that does not advance, which is an event for operators.

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

// rest is what others may know of a partition that waits for messages: nothing of it changes meanwhile.
// partition.mu guards it.
type rest struct {
	on     bool
	times  int // how often it has rested
	since  time.Time
	replay *work         // runs beside the read
	over   chan struct{} // closed when replay is settled
}

// rests says that the partition waits for messages.
func (p *partition) rests() {
	p.submitsNothing()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rest.on, p.rest.since = true, time.Now()
	p.rest.times++
	p.replayBeside()
}

// wakes ends the rest. It waits for a replay that has begun.
func (p *partition) wakes() {
	p.mu.Lock()
	p.rest.on = false
	replay, over := p.rest.replay, p.rest.over
	p.mu.Unlock()
	if replay != nil {
		p.committer.withdraw(replay)
		<-over
	}
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
		now, err := w.run.effects.look(ctx, ps)
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
	p.reportResumed()
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

const (
	// lagEvery is the least time between two requests for the lag of one partition. Requests are
	// sent one at a time, so that many halted partitions take longer.
	lagEvery = 10 * time.Second

	// lagAfterClaim is how long a claimed partition may take to report its lag by advancing.
	lagAfterClaim = 5 * time.Second

	lagTimeout = 10 * time.Second
)

// lags requests the lag of partitions that do not report it by advancing. It requests the lag of
// halted partitions repeatedly, and once for those that have applied nothing since their claim.
type lags struct {
	observe func(Event)
	wake    chan struct{}

	mu sync.Mutex
	of map[epoch.Partition]*asking
}

// asking is the request for the lag of one partition. It stays after an answer, so that the next
// request keeps its distance.
type asking struct {
	tenure Tenure
	at     epoch.Fence
	wanted bool
	once   bool
	due    time.Time // not before
}

func newLags(observe func(Event)) *lags {
	return &lags{observe: observe, wake: make(chan struct{}, 1), of: map[epoch.Partition]*asking{}}
}

// halted requests the lag until the partition moves or is left: it grows meanwhile, and operators
// see how urgent the halt is.
func (l *lags) halted(t Tenure, at epoch.Fence) { l.want(t, at, false, 0) }

// claimed requests the lag of a partition unless it applies something soon.
func (l *lags) claimed(t Tenure, at epoch.Fence) { l.want(t, at, true, lagAfterClaim) }

// want keeps one request for each partition, the newest, and never brings its time forward.
func (l *lags) want(t Tenure, at epoch.Fence, once bool, in time.Duration) {
	p, earliest := t.Origin().Partition, time.Now().Add(in)
	l.mu.Lock()
	defer l.mu.Unlock()
	a := l.of[p]
	if a == nil {
		a = &asking{tenure: t, due: earliest}
		l.of[p] = a
	}
	if once && earliest.After(a.due) {
		a.due = earliest
	}
	a.at, a.wanted, a.once = at, true, once
	waits.Notify(l.wake)
}

// moves cancels the request: the partition advances.
func (l *lags) moves(p epoch.Partition) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if a := l.of[p]; a != nil {
		a.wanted = false
	}
}

// left ends the requests of a partition that this process no longer has.
func (l *lags) left(p epoch.Partition) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.of, p)
}

// next returns the request that is due first.
func (l *lags) next() (first *asking, due time.Time, at epoch.Fence) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, a := range l.of {
		if a.wanted && (first == nil || a.due.Before(due)) {
			first, due, at = a, a.due, a.at
		}
	}
	return first, due, at
}

// ask sends the requests that are due, one at a time. A source that does not answer delays only
// other requests for the lag.
func (l *lags) ask(ctx context.Context) {
	for ctx.Err() == nil {
		a, due, at := l.next()
		in := lagEvery
		if a != nil {
			in = time.Until(due)
		}
		if in <= 0 {
			l.answer(ctx, a, at)
			continue
		}
		timer := time.NewTimer(in)
		select {
		case <-ctx.Done():
		case <-l.wake:
		case <-timer.C:
		}
		timer.Stop()
	}
}

// answer requests the lag and reports it, unless the partition has moved meanwhile. It reports
// under the lock, so that an old lag is not reported after a newer [Advanced].
func (l *lags) answer(ctx context.Context, a *asking, at epoch.Fence) {
	ctx, cancel := context.WithTimeout(ctx, lagTimeout)
	defer cancel()
	p, n := a.tenure.Origin().Partition, int64(-1)
	if at.Check(a.tenure.Origin()) == nil {
		if behind, err := a.tenure.Lag(ctx, at); err == nil {
			n = behind
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	a.due = time.Now().Add(lagEvery)
	if l.of[p] != a || !a.wanted || a.at.Next != at.Next {
		return
	}
	if a.once && n >= 0 {
		a.wanted = false
	}
	l.observe(Behind{Partition: p, Next: at.Next, Lag: n})
}
