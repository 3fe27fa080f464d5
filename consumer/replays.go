package consumer

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"math"
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

// replay is a request that a look has found. The number of the look shows whether the request was
// read before or after the last replay of the same dead letter was settled.
type replay struct {
	operate.RequestedReplay
	look int64 // number of the look that found it
	from *requests
}

// replays are the requested replays of one partition. The partition runs one at a time, while no transaction of
// its messages is open. So a handler never runs twice at a time.
type replays struct {
	added chan struct{} // has a value after a request was queued
	tries map[int64]int // by ID: tries that failed for a transient reason. Whoever runs a replay has it

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
		q.settled = map[int64]int64{}
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
func (q *replays) settle(r *replay, looks int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.settled[r.ID] = looks; q.now == r.ID {
		q.now = 0
	}
}

// putBack makes a replay that did not begin the next one.
func (q *replays) putBack(r *replay) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.now = 0; q.taken {
		q.queue = slices.Insert(q.queue, 0, *r)
	}
}

func (q *replays) waiting() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.queue) > 0
}

// requested queues a replay. It begins at once beside a read that waits for messages.
func (p *partition) requested(r replay) {
	if p.replays.add(r) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.replayBeside()
	}
}

// replayBeside begins the next replay while the partition rests. The read goes on: to end it would cost the
// source far more than the replay. A message that arrives waits for the replay ([partition.wakes]). p.mu is held.
func (p *partition) replayBeside() {
	if !p.rest.on || p.rest.replay != nil || !p.running(p.claim) {
		return
	}
	r, ok := p.replays.next()
	if !ok {
		return
	}
	w, over := p.replayWork(&r), make(chan struct{})
	p.rest.replay, p.rest.over = w, over
	p.committer.submit(w)
	go func() {
		a := <-w.answer
		if !a.none {
			p.committer.submitsNothing()
		}
		out := p.settleReplay(&r, a)
		p.mu.Lock()
		defer p.mu.Unlock()
		p.rest.replay = nil
		if out.action != advance {
			p.hang = cmp.Or(p.hang, out.hang) // also if something else has ended the claim before
			p.claim.breakWith(out)
		}
		close(over)
		p.replayBeside()
	}()
}

// replayOne runs the next replay between two transactions, if there is one and it begins at once. The outcome is
// advance unless it ends the claim.
func (p *partition) replayOne() outcome {
	if !p.replays.waiting() || !p.running(p.claim) || !p.committer.replaysAtOnce() {
		return outcome{action: advance}
	}
	r, ok := p.replays.next()
	if !ok {
		return outcome{action: advance}
	}
	return p.settleReplay(&r, p.submit(p.replayWork(&r)))
}

// settleReplay decides what became of a replay. The outcome is advance unless it ends the claim. A replay
// that is done or has failed for good makes requests look again at once, so that a list of replays does not
// take 2 s each.
func (p *partition) settleReplay(r *replay, a answer) outcome {
	q := &p.replays
	switch {
	case a.none:
		q.putBack(r)
		return outcome{action: advance}
	case a.abandoned:
		delete(q.tries, r.ID)
		p.reportReplay(r, replayFailed, a)
		p.recordFailure(r, a)
		return p.abandoned(a)
	}
	v := judgeReplay(a.tried[a.of], a.result, q.tries[r.ID])
	if q.tries[r.ID] = v.tries; v.tries == 0 {
		delete(q.tries, r.ID)
	}
	if v.broke.action == haltForGood {
		p.run.endedTx(p.id, v.broke.err) // the partition stays halted, even if the claim has ended already
	}
	p.reportReplay(r, v.what, a)
	if v.what == replayed {
		p.wakeBackground()
	}
	if v.failed {
		p.recordFailure(r, a)
	} else if q.settle(r, r.from.looks()); v.what.final() {
		p.wantsReplays(r)
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
		run: p.run, fence: at, batch: Batch{Messages: []Message{m}, Next: at.Next, Mark: at.Mark}, most: 1, replay: r,
		trial: trial{partition: p.id}, timeout: p.timeout, lost: p.claim, answer: make(chan answer, 1),
	}
}

// recordFailure makes the sink record a failed replay, beside the messages. The replay is not tried again before
// that.
func (p *partition) recordFailure(r *replay, a answer) {
	p.replays.settle(r, math.MaxInt64)
	failed, at, cause := r.RequestedReplay, a.part.fence, cmp.Or(a.handler, a.err)
	p.run.running.Go(func() {
		ctx, cancel := context.WithTimeout(p.committer.base, p.timeout)
		defer cancel()
		if err := p.run.records.ReplayFailed(ctx, failed, at, cause); err != nil {
			p.run.log(p.id).Warn("could not record that a replay has failed, the dead letter is replayed again", "dead_letter", r.ID, "err", err)
		}
		p.replays.settle(r, r.from.looks())
		p.wantsReplays(r)
	})
}

// wantsReplays asks for the next requests at once when none is queued.
func (p *partition) wantsReplays(last *replay) {
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
