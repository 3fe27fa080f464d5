package consumer

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"math"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/epochfence/epochfence/epoch"
)

// requests look every few seconds what people have asked of this process: an act on a
// fence, which its owner may not meet with by itself for long, and replays of
// dead letters. There is one for each shard.
type requests[TX any] struct {
	run    *runner[TX]
	shard  int
	sink   epoch.Operable[TX]
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
		q.run.Logger.Log(ctx, level, "could not look for what people ask of the owner of partitions", "partitions", len(ps), "looks", q.failed, "err", err)
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
			o.loop.do(func() { o.loop.requested(o.pending, replay{r, look, q}) })
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

// replay is a dead letter that is to be replayed.
type replay struct {
	epoch.Replay
	look int64 // which look has found it
	from interface {
		looks() int64
		again()
	}
}

// replays are those of a loop. It runs one at a time, beside its lanes, and only while
// no transaction of the partition is under way: so it is in the lane of its
// partition, whose handler never runs twice at a time. The loop owns them.
type replays[TX any] struct {
	queue   []queuedReplay[TX]
	busy    bool
	settled map[int64]int64 // how many looks had begun when a dead letter was settled last
	tries   map[int64]int   // that have failed for a reason that passes
}

type queuedReplay[TX any] struct {
	p *pending[TX]
	replay
}

// maxReplayTries is how often a replay is tried that fails for reasons that pass.
const maxReplayTries = 5

// requested takes on a replay, unless it is queued, or the look that has found it is
// older than its last try.
func (l *loop[TX]) requested(p *pending[TX], r replay) {
	q := &l.replays
	if _, here := l.idle.held[p]; !here || q.settled[r.ID] >= r.look {
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

// startReplay starts the next replay whose partition has no transaction under way. Where
// there are messages as well, the two take turns.
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

// dropReplays forgets those of a partition that is no longer consumed: whoever consumes
// it next finds them again.
func (l *loop[TX]) dropReplays(p *pending[TX]) {
	var left []queuedReplay[TX]
	for _, r := range l.replays.queue {
		if r.p != p {
			left = append(left, r)
		}
	}
	l.replays.queue = left
}

// newReplay is the transaction of a replay: it applies one message, whose offset is
// below the position, and leaves the position where it is.
func newReplay[TX any](p *pending[TX], r replay) *transaction[TX] {
	at := p.fence
	return &transaction[TX]{
		run: p.owner.run, timeout: p.owner.timeout, replay: &r,
		parts: []part[TX]{{
			pending: p, lost: p.claim, messages: []Message{r.Message}, epoch: at.Epoch,
			advance: epoch.Advance{Partition: at.Partition, Claim: at.Claim, From: at.Next, To: at.Next, Mark: at.Mark},
		}},
	}
}

// outcomeOfReplay is what the answer to the transaction of a replay means.
type outcomeOfReplay int

const (
	replayed     outcomeOfReplay = iota
	replayAgain                  // nothing is committed, for a reason that has to do with neither
	replayTries                  // likewise, and it counts
	replayFailed                 // the message is still at fault
	replayGone                   // nobody wants it any more, or it is done
	replayBroke                  // the claim has ended with it
)

// judgeReplay decides as [policy.judge] does: a refusal by the fence comes before doubt,
// and doubt before blame.
func judgeReplay(t trial, r result) (outcomeOfReplay, outcome) {
	v, whose := refusal(r.err)
	switch err := r.err; {
	case err == nil:
		return replayed, outcome{}
	case errors.Is(err, epoch.ErrTxEndedByHandler):
		return replayBroke, outcome{action: haltForGood, err: err}
	case whose == t.partition:
		return replayBroke, outcome{action: v.action, err: err}
	case errors.Is(err, epoch.ErrInDoubt):
		return replayBroke, outcome{action: claimAgain, err: err}
	case t.lost || !r.called || r.froze > 0 || errors.Is(err, epoch.ErrUnhealthy) && !isPermanent(r.handler):
		return replayAgain, outcome{}
	case errors.Is(err, epoch.ErrTransient) && !isPermanent(r.handler):
		return replayTries, outcome{}
	case errors.Is(err, epoch.ErrNotRequested) && r.handler == nil:
		return replayGone, outcome{}
	default:
		return replayFailed, outcome{}
	}
}

// finishedReplay settles a replay whose transaction has ended.
func (l *loop[TX]) finishedReplay(t *transaction[TX], r result) {
	q, p := &l.replays, t.parts[0].pending
	q.busy, p.replaying, p.replayed = false, false, true
	id := t.replay.ID
	if q.settled == nil {
		q.settled, q.tries = map[int64]int64{}, map[int64]int{}
	}
	q.settled[id] = t.replay.from.looks()
	what, out := judgeReplay(t.trials()[0], r)
	kills := what == replayBroke && errors.Is(r.err, epoch.ErrInDoubt) && r.froze == 0
	if what == replayTries || kills {
		q.tries[id]++
	}
	tired := q.tries[id] >= maxReplayTries
	if tired && what == replayTries {
		what = replayFailed
	}
	final := what == replayed || what == replayFailed || what == replayGone
	if final || tired {
		delete(q.tries, id)
	}
	if out.action == haltForGood {
		l.run.endedTx(p.fence.Partition, out.err) // whatever the owner is at: never again
	}
	if _, here := l.idle.held[p]; here && what == replayBroke {
		p.breakClaim(out)
	}
	l.reportReplay(t, what, final, r)
	switch what {
	case replayed, replayGone:
		l.wantsReplays(t.replay)
	case replayFailed:
		l.recordFailure(t, r)
	case replayBroke:
		if kills && tired { // the connection, each time
			l.recordFailure(t, r)
		}
	case replayAgain, replayTries: // a later look finds it
	}
	if p.left != nil {
		close(p.left)
		p.left = nil
	}
}

// wantsReplays has more replays looked for at once when there are none left.
func (l *loop[TX]) wantsReplays(last *replay) {
	if len(l.replays.queue) == 0 {
		last.from.again()
	}
}

// recordFailure has it recorded that a replay has failed, which until then is not tried
// again.
func (l *loop[TX]) recordFailure(t *transaction[TX], r result) {
	l.replays.settled[t.replay.ID] = math.MaxInt64
	cause := cmp.Or(r.handler, r.err)
	l.run.running.Go(func() {
		ctx, cancel := context.WithTimeout(l.base, t.timeout)
		defer cancel()
		if err := l.run.operable.ReplayFailed(ctx, t.replay.Replay, t.parts[0].epoch, cause); err != nil {
			l.run.log(t.parts[0].advance.Partition).Warn("could not record that a replay has failed, it is tried again", "dead_letter", t.replay.ID, "err", err)
		}
		l.do(func() {
			l.replays.settled[t.replay.ID] = t.replay.from.looks()
			l.wantsReplays(t.replay)
		})
	})
}

// reportReplay says what became of a replay.
func (l *loop[TX]) reportReplay(t *transaction[TX], what outcomeOfReplay, final bool, r result) {
	part := t.parts[0]
	about := []any{"dead_letter", t.replay.ID, "offset", t.replay.Message.Offset, "epoch", part.epoch}
	log := l.run.log(part.advance.Partition)
	switch what {
	case replayed:
		log.Info("a dead letter was replayed", about...)
	case replayFailed:
		log.Error("the replay of a dead letter has failed, it stays one", append(about, "err", r.err)...)
	case replayGone:
		log.Info("the replay of a dead letter was rolled back: it was withdrawn, discarded or done meanwhile", about...)
	default:
		log.Warn("the replay of a dead letter was rolled back, trying again", append(about, "err", r.err)...)
	}
	l.run.Observe(Replayed{
		Partition: part.advance.Partition, Epoch: part.epoch, Offset: t.replay.Message.Offset, DeadLetter: t.replay.ID,
		Err: r.err, Final: final, Took: r.took,
	})
}
