package outbox

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v4"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
)

const (
	// scanLimit is how many entries are read at a time, and settleLimit how many
	// answers are settled in one transaction.
	scanLimit   = 64
	settleLimit = 64

	// maxLanes bounds what is known of entries that failed or wait: their keys and
	// IDs, not their bodies. When so many fail, no more are read.
	maxLanes = 4096

	// maxKept bounds the answers that OnAnswer or OnRefused could not take.
	// When there are so many, nothing more is sent.
	maxKept = 64
)

// relay sends the entries of one partition under one claim. Its loop runs on
// one goroutine, which alone touches its fields; each request has another.
type relay[TX any] struct {
	*Box[TX]
	claim  consumer.Beside[TX]
	p      epoch.Partition
	epoch  epoch.Epoch
	logger *slog.Logger

	lanes    map[laneKey]*lane
	ready    []*lane // to be sent, in order
	finished []*lane // answered, to be settled
	waiting  waiting // to be sent again
	kept     waiting // with an answer, to be settled again
	sending  int
	answers  chan *lane // from the requests under way
	requests sync.WaitGroup

	after  int64 // what is read so far: entries up to this ID are in a lane, or behind one
	more   bool  // there may be entries after it
	alone  bool  // settle one answer at a time, to find the one at fault
	fenced *lane // whose receiver has seen a higher epoch
	pause  backoff.BackOff
	resume time.Time // not before, after the database has failed
}

// Relay sends the entries of one partition under one claim, until the claim
// ends or a receiver says that it has: set consumer.Options.Beside to it.
//
// Each entry is sent at least once, unless a receiver refuses it for good. The
// one after it of the same Key is sent when the deletion of the one before has
// committed. After a crash between an answer and that, the entry is sent again,
// with the same idempotency key and under the epoch of the next claim.
func (b *Box[TX]) Relay(ctx context.Context, claim consumer.Beside[TX]) {
	p := claim.Partition()
	r := &relay[TX]{
		Box: b, claim: claim, p: p, epoch: claim.Epoch(),
		logger:  b.o.Logger.With("group", p.Group, "topic", p.Topic, "partition", p.Number, "epoch", int64(claim.Epoch())),
		lanes:   map[laneKey]*lane{},
		answers: make(chan *lane, b.o.Concurrency),
		more:    true,
		pause:   b.newBackOff(),
	}
	if p.Group != b.o.Group {
		r.logger.Error("the outbox is of another group: its entries are not sent", "outbox_group", b.o.Group)
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	defer r.requests.Wait()
	defer cancel()
	for r.step(ctx) {
	}
	if ctx.Err() == nil && r.fenced != nil {
		r.explainFenced(ctx)
	}
}

// step does what can be done now, or waits for something to happen. It returns
// false when the relay is over.
func (r *relay[TX]) step(ctx context.Context) bool {
	if ctx.Err() != nil {
		return false
	}
	r.sendReady(ctx)
	now := time.Now()
	r.finished = append(r.finished, r.kept.due(now, maxKept)...)
	if r.fenced != nil && r.sending == 0 && len(r.finished) == 0 {
		return false
	}
	if now.Before(r.resume) { // the database is given time
		return r.await(ctx, now)
	}
	loads := r.waiting.due(now, r.room())
	if len(r.finished) > 0 || len(loads) > 0 || r.mayScan() {
		return r.transact(ctx, loads)
	}
	return r.await(ctx, now)
}

// room is how many more entries may be read.
func (r *relay[TX]) room() int {
	if r.fenced != nil || r.held() >= maxKept {
		return 0
	}
	return max(0, 2*r.o.Concurrency-len(r.ready))
}

// held is how many answers are in memory.
func (r *relay[TX]) held() int { return r.kept.len() + len(r.finished) }

// mayScan reports whether entries are to be looked for that are in no lane.
func (r *relay[TX]) mayScan() bool {
	return r.more && r.room() > 0 && len(r.lanes) < maxLanes
}

// await waits for an answer, for new entries, and for what is due.
func (r *relay[TX]) await(ctx context.Context, now time.Time) bool {
	var wake <-chan time.Time
	if next, ok := r.next(now); ok {
		timer := time.NewTimer(next.Sub(now))
		defer timer.Stop()
		wake = timer.C
	}
	select {
	case <-ctx.Done():
		return false
	case l := <-r.answers:
		r.answered(l)
	case <-r.claim.Applied():
		r.more = true
	case <-wake:
	}
	for { // whatever else has come goes into the same transaction
		select {
		case l := <-r.answers:
			r.answered(l)
		default:
			return true
		}
	}
}

// next is when something has to be done although nothing has happened.
func (r *relay[TX]) next(now time.Time) (next time.Time, ok bool) {
	sooner := func(t time.Time) {
		if !ok || t.Before(next) {
			next, ok = t, true
		}
	}
	if now.Before(r.resume) {
		sooner(r.resume)
	} else if t, some := r.waiting.next(); some && r.room() > 0 {
		sooner(t)
	}
	if t, some := r.kept.next(); some {
		sooner(t)
	}
	return next, ok
}

func (r *relay[TX]) sendReady(ctx context.Context) {
	for len(r.ready) > 0 && r.sending < r.o.Concurrency && r.held() < maxKept && r.fenced == nil {
		l := r.ready[0]
		r.ready = r.ready[1:]
		l.attempt++
		r.sending++
		sent := r.sent(l)
		r.requests.Go(func() {
			l.outcome = r.send(ctx, sent)
			r.answers <- l // it has room for all
		})
	}
}

func (r *relay[TX]) sent(l *lane) Sent {
	return Sent{Row: *l.row, Partition: r.p, Epoch: r.epoch, Attempt: l.attempt}
}

// answered decides what the outcome of a request is for its lane.
func (r *relay[TX]) answered(l *lane) {
	r.sending--
	switch l.outcome.kind {
	case Delivered:
		r.finished = append(r.finished, l)
	case Refused:
		if r.o.OnRefused != nil && l.outcome.answered {
			r.finished = append(r.finished, l)
			return
		}
		r.report(l, Refused, l.outcome.err)
		r.retry(l, r.o.RetryMax)
	case Fenced:
		r.report(l, Fenced, l.outcome.err)
		r.fenced = l
	default:
		r.report(l, Retrying, l.outcome.err)
		r.retry(l, max(l.next(r.Box), min(l.outcome.retryAfter, r.o.RetryMax)))
	}
}

// retry puts a lane aside. Its entry is read again when it is due.
func (r *relay[TX]) retry(l *lane, in time.Duration) {
	l.row, l.outcome = nil, outcome{}
	r.waiting.add(l, time.Now().Add(in))
}

// report tells of an attempt that did not succeed. The log has one line for the
// first, the second, the fourth and so on.
func (r *relay[TX]) report(l *lane, kind Kind, err error) {
	sent := r.sent(l)
	r.o.Observe(Event{Kind: kind, Sent: sent, Status: l.outcome.answer.Status, Err: err})
	if l.attempt&(l.attempt-1) != 0 {
		return
	}
	level, text := slog.LevelWarn, "an entry of the outbox was not delivered, it is tried again"
	switch kind {
	case Refused:
		level, text = slog.LevelError, "an entry of the outbox was refused for good, it stays and is tried again"
	case Fenced:
		level, text = slog.LevelError, "a receiver has seen a higher epoch, nothing more is sent under this claim"
	}
	r.logger.Log(context.Background(), level, text, "entry", sent.ID, "scope", sent.Scope, "key", sent.Key,
		"idempotency_key", sent.IdempotencyKey, "url", redacted(sent.URL), "attempt", sent.Attempt, "err", err)
}

// explainFenced asks the sink who is right, until it answers.
func (r *relay[TX]) explainFenced(ctx context.Context) {
	for {
		err := r.claim.Do(ctx, func(context.Context, TX) error { return nil })
		switch {
		case err == nil:
			r.logger.Error("the receiver has seen a higher epoch than the sink has issued: another partition uses the same scope, "+
				"or the sink was restored from a backup; nothing is sent until the next claim", "scope", r.fenced.row.Scope, "err", r.fenced.outcome.err)
			return
		case ended(err):
			r.logger.Info("the claim of the outbox's relay was superseded, as its receiver said", "err", err)
			return
		}
		timer := time.NewTimer(r.pause.NextBackOff())
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return
		}
	}
}

// transact settles what was answered and reads what is to be sent next, in one
// transaction. It returns false when the claim has ended.
func (r *relay[TX]) transact(ctx context.Context, loads []*lane) bool {
	var t settlement
	t.settle = r.finished[:min(len(r.finished), settleLimit)]
	if r.alone {
		t.settle = t.settle[:min(len(t.settle), 1)]
	}
	if !r.alone || len(t.settle) == 0 {
		t.load = loads
		t.scan = r.mayScan()
	}
	err := r.claim.Do(ctx, func(ctx context.Context, tx TX) error { return r.apply(ctx, tx, &t) })
	if err == nil {
		r.committed(&t)
		r.waiting.back(loads[len(t.load):])
		r.alone = r.alone && len(r.finished) > 0
		r.pause.Reset()
		return true
	}
	r.waiting.back(loads)
	if ctx.Err() != nil || ended(err) {
		return false
	}
	var own *ownError
	switch {
	case errors.As(err, &own):
		r.keep(own.lane, own.err)
	case len(t.settle) > 1:
		r.alone = true
	case len(t.settle) == 1 && !errors.Is(err, epoch.ErrTransient) && !errors.Is(err, epoch.ErrInDoubt):
		r.keep(t.settle[0], err)
	default:
		wait := r.pause.NextBackOff()
		r.resume = time.Now().Add(wait)
		r.logger.Warn("the outbox could not be read or settled, trying again", "err", err, "retry_in", wait)
	}
	return true
}

// ended reports whether an error of Do has ended the claim. [epoch.ErrInDoubt] is
// not among them: if it has, the context has ended too; and if what was in
// doubt did commit, the entry is not there any more.
func ended(err error) bool {
	for _, end := range []error{epoch.ErrStale, epoch.ErrMoved, epoch.ErrMissing, epoch.ErrEscaped} {
		if errors.Is(err, end) {
			return true
		}
	}
	return false
}

// keep puts a lane aside whose answer the application could not take.
func (r *relay[TX]) keep(l *lane, err error) {
	for i, f := range r.finished {
		if f == l {
			r.finished = append(r.finished[:i:i], r.finished[i+1:]...)
			break
		}
	}
	r.report(l, Retrying, err)
	r.kept.add(l, time.Now().Add(l.next(r.Box)))
}

// committed notes what the transaction has done.
func (r *relay[TX]) committed(t *settlement) {
	r.finished = r.finished[len(t.settle):]
	for _, l := range t.settle {
		if !t.gone[l] {
			r.o.Observe(Event{Kind: l.outcome.kind, Sent: r.sent(l), Status: l.outcome.answer.Status})
		}
		r.continueWith(l, t.next[l])
	}
	for _, l := range t.load {
		r.continueWith(l, t.next[l])
	}
	if !t.scan {
		return
	}
	r.more = len(t.rows) == scanLimit
	for _, row := range t.rows {
		r.after = row.ID
		at := laneKey{key: row.Key}
		if row.Key == "" {
			at.id = row.ID
		}
		if l := r.lanes[at]; l != nil {
			l.more = l.more || l.id != row.ID
			continue
		}
		l := &lane{key: at, id: row.ID, row: &row}
		r.lanes[at] = l
		r.ready = append(r.ready, l)
	}
}

// continueWith goes on with the next entry of a lane, or ends it.
func (r *relay[TX]) continueWith(l *lane, row *Row) {
	if row == nil {
		delete(r.lanes, l.key)
		return
	}
	if row.ID != l.id {
		l.attempt, l.wait = 0, nil
		l.more = true // perhaps
	}
	l.id, l.row, l.outcome = row.ID, row, outcome{}
	r.ready = append(r.ready, l)
}
