package consumer

import (
	"cmp"
	"context"
	"maps"
	"math"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/operate"
)

// This file decides when a dead letter is replayed: one at a time in each loop, and never while
// another transaction of its partition is open. requests.go finds the requests, and
// replay_verdict.go decides what a result means.

// replay is a request that a look has found. The number of the look shows whether the request was
// read before or after the last replay of the same dead letter was settled.
type replay struct {
	operate.RequestedReplay
	look  int64       // number of the look that found it
	under epoch.Fence // of the claim, once it is started
	from  interface {
		looks() int64
		again()
	}
}

// replays are the replays of a loop, which owns them. It runs one at a time, and only while no
// transaction of the partition is under way. So a handler never runs twice at a time.
type replays[TX any] struct {
	queue   []queuedReplay[TX]
	busy    bool
	settled map[int64]int64 // by ID: how many looks had begun when it was last settled
	tries   map[int64]int   // by ID: tries that failed for a transient reason
}

type queuedReplay[TX any] struct {
	p *pending[TX]
	replay
}

// queueReplay queues a replay, unless it is queued or was tried since the look that found it.
func (l *loop[TX]) queueReplay(t *tenancy[TX], r replay) {
	q, p := &l.replays, l.held[t]
	if p == nil || q.settled[r.ID] >= r.look {
		return
	}
	maps.DeleteFunc(q.settled, func(_, looks int64) bool { return looks < r.look }) // no earlier look comes any more
	for _, other := range q.queue {
		if other.ID == r.ID {
			return
		}
	}
	q.queue = append(q.queue, queuedReplay[TX]{p, r})
}

// startReplay starts the next replay that can run. Replays and ready messages alternate.
func (l *loop[TX]) startReplay() {
	q := &l.replays
	if q.busy {
		return
	}
	for i, r := range q.queue {
		if p := r.p; p.state != busy && (p.state != ready || !p.replayed) && p.claim.Err() == nil {
			q.queue = append(q.queue[:i:i], q.queue[i+1:]...)
			q.busy, p.replaying = true, true
			l.start(newReplay(p, r.replay))
			return
		}
	}
}

// dropReplays drops the replays of a detached partition. Its next owner finds them again.
func (l *loop[TX]) dropReplays(p *pending[TX]) {
	var left []queuedReplay[TX]
	for _, r := range l.replays.queue {
		if r.p != p {
			left = append(left, r)
		}
	}
	l.replays.queue = left
}

// newReplay returns a transaction for one message below the position, which it does not move.
func newReplay[TX any](p *pending[TX], r replay) *transaction[TX] {
	at, m := p.fence, r.Message
	m.Under, m.Replay = p.under, r.ID
	r.under = at
	return &transaction[TX]{
		run: p.run, timeout: p.timeout, replay: &r,
		parts: []part[TX]{{
			pending: p, lost: p.claim, messages: []Message{m}, epoch: at.Epoch,
			advance: epoch.Advance{Partition: at.Partition, Claim: at.Claim, From: at.Next, To: at.Next, Mark: at.Mark},
		}},
	}
}

// finishedReplay settles a replay and lets the partition's messages continue. A replay that is done
// or has failed for good makes requests look again at once, so that a list of replays does not take
// 2 s each.
func (l *loop[TX]) finishedReplay(t *transaction[TX], r result) {
	p, id := t.parts[0].pending, t.replay.ID
	q := l.replays.over(p)
	q.settled[id] = t.replay.from.looks()
	v := judgeReplay(t.trials()[0], r, q.tries[id])
	if q.tries[id] = v.tries; v.tries == 0 {
		delete(q.tries, id)
	}
	if v.broke.action == haltForGood {
		l.run.endedTx(p.fence.Partition, v.broke.err) // the partition stays halted, even if the claim has ended already
	}
	if v.what == replayBroke && l.holds(p) {
		p.claim.breakWith(v.broke)
	}
	l.reportReplay(t, v.what, r)
	if v.what == replayed {
		p.wakeBackground()
	}
	switch {
	case v.failed:
		l.recordFailure(t, r)
	case v.what.final():
		l.wantsReplays(t.replay)
	}
	p.handBack()
}

// over ends the replay under way, so that the partition's messages may continue.
func (q *replays[TX]) over(p *pending[TX]) *replays[TX] {
	q.busy, p.replaying, p.replayed = false, false, true
	if q.settled == nil {
		q.settled, q.tries = map[int64]int64{}, map[int64]int{}
	}
	return q
}

// replayRecorded lets a failed replay be requested again.
func (l *loop[TX]) replayRecorded(r *replay) {
	l.replays.settled[r.ID] = r.from.looks()
	l.wantsReplays(r)
}

// handBack answers a tenure that asked for its partition during a replay.
func (p *pending[TX]) handBack() {
	if p.back != nil {
		back := p.back
		p.back = nil
		back <- p
	}
}

// wantsReplays asks for the next requests at once when none is queued.
func (l *loop[TX]) wantsReplays(last *replay) {
	if len(l.replays.queue) == 0 {
		last.from.again()
	}
}

// recordFailure makes the sink record a failed replay. The replay is not tried again before that.
func (l *loop[TX]) recordFailure(t *transaction[TX], r result) {
	l.replays.settled[t.replay.ID] = math.MaxInt64
	cause := cmp.Or(r.handler, r.err)
	l.run.running.Go(func() {
		ctx, cancel := context.WithTimeout(l.base, t.timeout)
		defer cancel()
		if err := l.run.operable.ReplayFailed(ctx, t.replay.RequestedReplay, t.replay.under, cause); err != nil {
			l.run.log(t.parts[0].advance.Partition).Warn("could not record that a replay has failed, the dead letter is replayed again", "dead_letter", t.replay.ID, "err", err)
		}
		l.send(replayRecorded[TX]{t.replay})
	})
}

// reportReplay logs the result and sends the event. Each try of a replay has one.
func (l *loop[TX]) reportReplay(t *transaction[TX], what outcomeOfReplay, r result) {
	part := t.parts[0]
	about := []any{"dead_letter", t.replay.ID, "offset", t.replay.Message.Offset, "epoch", part.epoch}
	log := l.run.log(part.advance.Partition)
	switch what {
	case replayed:
		log.Info("a dead letter was replayed", about...)
	case replayFailed:
		log.Error("the replay of a dead letter failed, and the dead letter stays", append(about, "err", r.err)...)
	case replayGone:
		log.Info("the replay of a dead letter was rolled back: it was withdrawn, discarded or done meanwhile", about...)
	case replayBroke:
		log.Warn("the replay of a dead letter ended the claim; if it was not committed, it stays requested", append(about, "err", r.err)...)
	default:
		log.Warn("the replay of a dead letter was rolled back, trying again", append(about, "err", r.err)...)
	}
	l.run.Observe(Replayed{
		Partition: part.advance.Partition, Epoch: part.epoch, Offset: t.replay.Message.Offset, DeadLetter: t.replay.ID,
		Err: r.err, Final: what.final(), Took: r.took,
	})
}
