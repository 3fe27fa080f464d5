package consumer

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/waits"
	"github.com/epochfence/epochfence/operate"
)

// This file finds what operators have requested, and replays dead letters: it decides when one is
// replayed, between two transactions of its partition, and what the result means. watch.go and
// claim.go read what an action has done to a fence.

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

// look polls until ctx ends, and only while this process has partitions of the shard.
func (q *requests) look(ctx context.Context) {
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

// replay is a request that a look has found. The number of the look shows whether the request was
// read before or after the last replay of the same dead letter was settled.
type replay struct {
	operate.RequestedReplay
	look int64 // number of the look that found it
	from *requests
}

// replays are the requested replays of one partition. The partition runs one between two transactions of
// its messages. So a handler never runs twice at a time.
type replays struct {
	added chan struct{} // has a value after a request was queued
	tries map[int64]int // by ID: tries that failed for a transient reason. The partition's goroutine has it

	mu    sync.Mutex
	taken bool // requests are queued; otherwise the next look finds them again
	queue []replay
	now   int64 // ID of the one that is being replayed

	settled map[int64]int64 // by ID: how many looks had begun when it was last settled
}

func (q *replays) open() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.taken, q.now = true, 0
	if q.settled == nil {
		q.settled, q.tries = map[int64]int64{}, map[int64]int{}
	}
}

// close drops what is queued. The next owner of the partition finds it again.
func (q *replays) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.taken, q.queue = false, nil
}

// add queues a replay, unless it is queued or was tried since the look that found it.
func (q *replays) add(r replay) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.taken || r.ID == q.now || q.settled[r.ID] >= r.look {
		return false
	}
	maps.DeleteFunc(q.settled, func(_, looks int64) bool { return looks < r.look }) // no earlier look comes any more
	if slices.ContainsFunc(q.queue, func(other replay) bool { return other.ID == r.ID }) {
		return false
	}
	q.queue = append(q.queue, r)
	waits.Notify(q.added)
	return true
}

// next takes the next replay, and reports whether others follow.
func (q *replays) next() (r replay, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.queue) == 0 {
		return replay{}, false
	}
	r = q.queue[0]
	q.now = r.ID
	q.queue = slices.Delete(q.queue, 0, 1)
	if len(q.queue) > 0 {
		waits.Notify(q.added)
	}
	return r, true
}

// settle ends a replay. A request that looks have found until now is not tried again.
func (q *replays) settle(r *replay) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.now, q.settled[r.ID] = 0, r.from.looks()
}

func (q *replays) waiting() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.queue) > 0
}

// requested queues a replay, and interrupts a partition that waits for messages.
func (p *partition) requested(r replay) {
	if p.replays.add(r) {
		p.interrupt()
	}
}

const (
	// A partition that has no messages replays dead letters for replayTime, and then looks for messages for
	// readTime.
	replayTime = 200 * time.Millisecond
	readTime   = 20 * time.Millisecond

	// timeToRecord is how long a partition waits until a failed replay is recorded.
	timeToRecord = 2 * time.Second
)

// replayFor runs the replays that are queued, for about d.
func (p *partition) replayFor(d time.Duration) outcome {
	for began := time.Now(); p.replays.waiting() && time.Since(began) < d; {
		if out := p.replayOne(); out.action != advance {
			return out
		}
		if !p.running(p.claim) {
			return outcome{action: leave}
		}
	}
	return outcome{action: advance}
}

// replayOne runs the next replay, if there is one. The outcome is advance unless it ends the claim. A replay
// that is done or has failed for good makes requests look again at once, so that a list of replays does not
// take 2 s each.
func (p *partition) replayOne() outcome {
	if !p.running(p.claim) {
		return outcome{action: advance}
	}
	r, ok := p.replays.next()
	if !ok {
		return outcome{action: advance}
	}
	p.rests(func() {}) // an operator may act on the fence meanwhile
	a := p.submit(p.replayWork(&r))
	p.wakes()
	q := &p.replays
	defer q.settle(&r)
	if a.none {
		return outcome{action: advance} // the next owner finds it again
	}
	if a.abandoned {
		delete(q.tries, r.ID)
		p.reportReplay(&r, replayFailed, a)
		p.recordFailure(&r, a)
		return p.abandoned(a)
	}
	v := judgeReplay(a.tried[a.of], a.result, q.tries[r.ID])
	if q.tries[r.ID] = v.tries; v.tries == 0 {
		delete(q.tries, r.ID)
	}
	p.reportReplay(&r, v.what, a)
	if v.what == replayed {
		p.wakeBackground()
	}
	switch {
	case v.failed:
		p.recordFailure(&r, a)
	case v.what.final():
		p.wantsReplays(&r)
	}
	if v.what == replayBroke {
		return v.broke
	}
	return outcome{action: advance}
}

// replayWork is one message below the position, which it does not move.
func (p *partition) replayWork(r *replay) *work {
	at, m := p.fence, r.Message
	m.Under, m.Replay = p.under, r.ID
	return &work{
		run: p.run, fence: at, batch: Batch{Messages: []Message{m}, Next: at.Next, Mark: at.Mark}, most: 1, alone: true, replay: r,
		trial: trial{partition: p.id}, timeout: p.timeout, lost: p.claim, answer: make(chan answer, 1),
	}
}

// recordFailure makes the sink record a failed replay, also if the replay has ended the claim. The partition
// waits for it, so it has little time.
func (p *partition) recordFailure(r *replay, a answer) {
	p.submitsNothing()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(p.lease), min(p.timeout, timeToRecord))
	defer cancel()
	if err := p.run.records.ReplayFailed(ctx, r.RequestedReplay, a.part.fence, cmp.Or(a.handler, a.err)); err != nil {
		p.run.log(p.id).Warn("could not record that a replay has failed, the dead letter is replayed again", "dead_letter", r.ID, "err", err)
	}
	p.wantsReplays(r)
}

// wantsReplays asks for the next requests at once when none is queued.
func (p *partition) wantsReplays(last *replay) {
	p.replays.settle(last)
	if !p.replays.waiting() {
		last.from.again()
	}
}

// reportReplay logs the result and sends the event. Each try of a replay has one.
func (p *partition) reportReplay(r *replay, what outcomeOfReplay, a answer) {
	about := []any{"dead_letter", r.ID, "offset", r.Message.Offset, "epoch", a.part.epoch}
	log := p.run.log(p.id)
	switch what {
	case replayed:
		log.Info("a dead letter was replayed", about...)
	case replayFailed:
		log.Error("the replay of a dead letter failed, and the dead letter stays", append(about, "err", a.err)...)
	case replayGone:
		log.Info("the replay of a dead letter was rolled back: it was withdrawn, discarded or done meanwhile", about...)
	case replayBroke:
		log.Warn("the replay of a dead letter ended the claim; if it was not committed, it stays requested", append(about, "err", a.err)...)
	default:
		log.Warn("the replay of a dead letter was rolled back, trying again", append(about, "err", a.err)...)
	}
	p.run.Observe(Replayed{
		Partition: p.id, Epoch: a.part.epoch, Offset: r.Message.Offset, DeadLetter: r.ID,
		Err: a.err, Final: what.final(), Took: a.took,
	})
}

type replayVerdict struct {
	what   outcomeOfReplay
	broke  outcome // with replayBroke: what ended the claim
	tries  int     // that count so far; 0 once the replay is settled
	failed bool    // the sink is to record that the replay has failed
}

// outcomeOfReplay says what became of a replay.
type outcomeOfReplay int

const (
	replayed     outcomeOfReplay = iota
	replayAgain                  // nothing is committed, and neither message nor handler is at fault
	replayTries                  // nothing is committed for a transient reason, and the try counts
	replayFailed                 // the message is still at fault
	replayGone                   // it was withdrawn, or is done
	replayBroke                  // the claim has ended, too
)

func (o outcomeOfReplay) final() bool {
	return o == replayed || o == replayFailed || o == replayGone
}

// maxReplayTries limits the tries of one request. A dead letter that deadlocks or ends its
// connection each time would otherwise disturb the partition for ever.
const maxReplayTries = 5

// judgeReplay decides on a replay. tries counts the failed tries before.
func judgeReplay(t trial, r result, tries int) replayVerdict {
	what, broke := resultOfReplay(t, r)
	kills := what == replayBroke && (inDoubt(r.err) || errors.Is(r.err, epoch.ErrStale)) && r.froze == 0 // its connection, or the claim
	if what == replayTries || kills {
		tries++
	}
	tired := tries >= maxReplayTries
	if tired && what == replayTries {
		what = replayFailed
	}
	v := replayVerdict{what: what, broke: broke, tries: tries, failed: what == replayFailed || tired && kills}
	if tired || what.final() {
		v.tries = 0
	}
	return v
}

// resultOfReplay keeps the order of [policy.judge]: first a refusal, then doubt, then blame.
func resultOfReplay(t trial, r result) (outcomeOfReplay, outcome) {
	v, whose := refusal(r.err)
	switch err := r.err; {
	case err == nil:
		return replayed, outcome{}
	case errors.Is(err, epoch.ErrTxEndedByHandler):
		return replayBroke, outcome{action: haltForGood, err: err}
	case whose == t.partition:
		return replayBroke, outcome{action: v.action, above: v.above, err: err}
	case errors.Is(err, epoch.ErrInDoubt):
		return replayBroke, outcome{action: claimAgain, err: err, beside: true}
	case t.lost || !r.called || r.froze > 0 || errors.Is(err, epoch.ErrUnhealthy) && !isPermanent(r.handler):
		return replayAgain, outcome{}
	case errors.Is(err, epoch.ErrTransient) && !isPermanent(r.handler):
		return replayTries, outcome{}
	case errors.Is(err, operate.ErrRowChanged) && r.handler == nil:
		return replayGone, outcome{}
	default:
		return replayFailed, outcome{}
	}
}
