package outbox

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/epochfence/epochfence/internal/waits"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
)

// This file decides what the relay does next: which entry is sent, and what its answer means for
// its lane. settlement.go has the transactions, send.go the request, and stopped.go what a refused
// epoch means.

const (
	scanLimit   = 64 // entries read by one scan
	settleLimit = 64 // answers settled in one transaction

	// maxLanes limits the lanes in memory. A waiting lane has no body. At the limit, the relay
	// reads no more entries.
	maxLanes = 4096

	// askOperatorsEvery is the interval for reading operators' requests to retry, while entries
	// wait.
	askOperatorsEvery = 2 * time.Second

	// maxKept limits the answers that wait for a transaction or for OnAnswer or OnRefused to
	// succeed. At the limit, the relay sends nothing more.
	maxKept = 64
)

// relay sends the entries of one partition under one claim. Only the goroutine of its loop touches
// its fields. Each request and the transaction under way have a goroutine of their own. So requests
// continue while a transaction waits for locks of the concurrent transactions of messages.
type relay[TX any] struct {
	*Box[TX]
	claim  consumer.Background[TX]
	p      epoch.Partition
	epoch  epoch.Epoch
	logger *slog.Logger

	lanes    map[laneKey]*lane
	ready    []*lane // to be sent, in order
	finished []*lane // answered, to be settled
	waiting  waiting // to be sent again
	kept     waiting // with an answer, to be settled again
	sending  int
	answers  chan *lane     // from the requests under way
	working  sync.WaitGroup // the requests and the transaction under way

	underWay *settlement // or nil; its lanes are in no other field
	outcomes chan error  // of underWay

	at    Cursor // read so far: each entry is in a lane or behind one
	more  bool   // there may be entries after at
	again int    // the answers at the front of finished whose transaction failed; no other joins them
	alone bool   // settle these one at a time, to find the failing one
	apart bool   // read the next entries in a transaction that settles nothing
	pause *waits.Backoff

	stopped map[target]*stop
	ask     []target // stopped targets that the sink was not asked about yet

	askPeople time.Time // ask the store for requests of operators from then on

	resume time.Time // when transactions resume after the database has failed

	backlog backlog
}

// Relay sends the entries of one partition under one claim, until the claim ends: set
// consumer.Handlers.Background to it.
//
// Each entry is sent at least once. The next entry of the same Key is sent when the deletion of the
// entry before has committed. After a crash between an answer and the deletion, the entry is sent
// again, with the same idempotency key and under the epoch of the next claim.
func (b *Box[TX]) Relay(ctx context.Context, claim consumer.Background[TX]) {
	p := claim.Partition()
	r := &relay[TX]{
		Box: b, claim: claim, p: p, epoch: claim.Epoch(),
		logger:   b.o.Logger.With("group", p.Group, "topic", p.Topic, "partition", p.Number, "epoch", int64(claim.Epoch())),
		lanes:    map[laneKey]*lane{},
		answers:  make(chan *lane, b.o.Concurrency),
		outcomes: make(chan error, 1),
		more:     true,
		pause:    b.newBackoff(),
		stopped:  map[target]*stop{},
	}
	ctx, cancel := context.WithCancel(ctx)
	defer r.working.Wait()
	defer cancel()
	defer r.forget()
	defer r.last()
	for r.step(ctx) {
	}
}

// last waits for the transaction under way if the relay ends first: because the claim has ended,
// which ends the transaction too, or because Options.Observe panics.
func (r *relay[TX]) last() {
	if t := r.underWay; t != nil && <-r.outcomes == nil {
		r.committed(t)
	}
}

// step is one iteration of the relay's loop. It returns false when the relay is over.
func (r *relay[TX]) step(ctx context.Context) bool {
	if ctx.Err() != nil {
		return false
	}
	now := time.Now()
	r.finished = append(r.finished, r.kept.due(now, maxKept)...)
	if r.underWay == nil && !now.Before(r.resume) {
		r.begin(ctx, now)
	}
	r.sendReady(ctx)
	return r.await(ctx, now)
}

func (r *relay[TX]) capacity() int {
	if r.held() >= maxKept {
		return 0
	}
	return max(0, max(2*r.o.Concurrency, scanLimit)-len(r.ready))
}

// held returns the number of answers in memory, without those of the transaction under way.
func (r *relay[TX]) held() int { return r.kept.len() + len(r.finished) }

func (r *relay[TX]) mayScan() bool {
	return r.more && r.capacity() > 0 && len(r.lanes) < maxLanes
}

// await waits for the next event. It returns false when the claim has ended.
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
	case err := <-r.outcomes:
		if !r.came(ctx, err) {
			return false
		}
	case <-r.claim.Applied():
		r.more = true
	case <-wake:
	}
	for { // take all answers that have come, to settle them in one transaction
		select {
		case l := <-r.answers:
			r.answered(l)
		default:
			return true
		}
	}
}

// next returns the time when the relay has work to do even if nothing happens.
func (r *relay[TX]) next(now time.Time) (next time.Time, ok bool) {
	sooner := func(t time.Time) {
		if !ok || t.Before(next) {
			next, ok = t, true
		}
	}
	switch {
	case r.underWay != nil: // nothing is read before its outcome
	case now.Before(r.resume):
		sooner(r.resume)
	case r.waits():
		sooner(r.askPeople)
		if t, some := r.waiting.next(); some && r.capacity() > 0 {
			sooner(t)
		}
	}
	if t, some := r.kept.next(); some {
		sooner(t)
	}
	return next, ok
}

// waits reports whether there are entries that operators may want to be tried now.
func (r *relay[TX]) waits() bool { return r.waiting.len()+r.kept.len() > 0 }

func (r *relay[TX]) sendReady(ctx context.Context) {
	for len(r.ready) > 0 && r.sending < r.o.Concurrency && r.held() < maxKept {
		l := r.ready[0]
		r.ready = r.ready[1:]
		if wait := r.stoppedFor(l); wait > 0 {
			r.retry(l, wait)
			continue
		}
		l.attempt++
		r.sending++
		sent := r.sent(l)
		r.working.Go(func() {
			began := time.Now()
			l.outcome = r.send(ctx, sent)
			l.took = time.Since(began)
			r.answers <- l // never blocks: its buffer holds all requests
		})
	}
}

func (r *relay[TX]) sent(l *lane) Sent {
	return Sent{Row: *l.row, Partition: r.p, Epoch: r.epoch, Attempt: l.attempt}
}

func (r *relay[TX]) answered(l *lane) {
	r.sending--
	switch l.outcome.kind {
	case Delivered:
		r.admitted(l)
		r.finished = append(r.finished, l)
	case Refused:
		r.admitted(l)
		if r.o.OnRefused != nil && l.outcome.answered {
			r.finished = append(r.finished, l)
			return
		}
		r.report(l, Refused, l.outcome.err)
		r.retry(l, r.o.RetryMax)
	case Fenced:
		r.report(l, Fenced, l.outcome.err)
		r.stop(l, l.outcome.highest)
	default:
		r.report(l, Retrying, l.outcome.err)
		r.retry(l, max(l.next(r.Box), min(l.outcome.retryAfter, r.o.RetryMax)))
	}
}

// retry makes a lane wait. Its entry is read again after the wait.
func (r *relay[TX]) retry(l *lane, in time.Duration) {
	l.row, l.outcome = nil, outcome{}
	r.waiting.add(l, time.Now().Add(in))
}

// report reports an answer that is no success, or none.
func (r *relay[TX]) report(l *lane, kind Kind, err error) {
	receiver := receiverOf(l.row.URL)
	level, text := slog.LevelWarn, "the receiver "+receiver+" does not take entries of the outbox, they are sent again"
	switch kind {
	case Refused:
		level, text = slog.LevelError, "the receiver "+receiver+" refuses entries of the outbox, and there is no OnRefused: they stay and are sent again"
	case Fenced:
		text = "the receiver " + receiver + " has seen a higher epoch, the entries of its scope wait"
	}
	r.observe(l, kind, l.took, err)
	r.log(l, level, text, err)
}

// reportOwn reports an OnAnswer or OnRefused that failed.
func (r *relay[TX]) reportOwn(l *lane, err error) {
	r.observe(l, Retrying, 0, err)
	r.log(l, slog.LevelWarn, "could not record an answer to an entry of the outbox; recording is tried again with the same answer; "+
		"only a later claim sends the entry again, with the same idempotency key", err)
}

func (r *relay[TX]) observe(l *lane, kind Kind, took time.Duration, err error) {
	r.o.Observe(Event{Kind: kind, Sent: r.sent(l), Status: l.outcome.answer.Status, Highest: l.outcome.highest, Took: took, Err: err})
}

// log writes a line when a failure begins, and some while it lasts. All partitions of the process share
// them, because an outage makes many entries fail many times.
func (r *relay[TX]) log(l *lane, level slog.Level, text string, err error) {
	r.troubles.Add(r.logger, level, l, text, text, "entry", l.row.ID, "scope", l.row.Scope, "key", l.row.Key,
		"idempotency_key", l.row.IdempotencyKey, "attempt", l.attempt, "err", err)
}

// forget ends the failures of the lanes at the end of the relay. It logs no recovery, because the receivers
// may still fail.
func (r *relay[TX]) forget() {
	for _, l := range r.lanes {
		r.troubles.Left(l)
	}
}

// ended reports whether an error of Do has ended the claim. [epoch.ErrInDoubt] does not count: if
// the claim has ended, the context has ended too. If the transaction was committed after all, the
// next one does not find the entries any more.
func ended(err error) bool {
	for _, end := range []error{epoch.ErrStale, epoch.ErrMissing, epoch.ErrTxEndedByHandler} {
		if errors.Is(err, end) {
			return true
		}
	}
	return false
}
