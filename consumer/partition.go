package consumer

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/epochfence/epochfence/consumer/internal/aside"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/waits"
)

// This file decides the course of a tenure: when it claims, applies, waits and ends (R7). claim.go gets a claim,
// apply.go applies messages under it, and next.go decides what its end means.

// partition is one tenure: claim the partition, apply its messages until the claim ends, wait, start
// over. Its state is that of one goroutine, the one of own, from grant to loss. While it waits in a
// read, it lends its claim and fence to watch.go and replays.go (rest, under mu).
type partition struct {
	run       *runner
	tenure    Tenure
	id        epoch.Partition
	committer *committer
	logger    *slog.Logger
	timeout   time.Duration
	lease     context.Context // ends when the lease is lost
	report    report
	acted     <-chan struct{} // closed when operators have acted since the fence was read

	// The claim.
	claim       *claim
	keepClaim   bool         // after a halt, with nothing in doubt: ours continues if the fence still carries it
	fence       epoch.Fence  // as last claimed and advanced; zero before the first claim
	under       *epoch.Fence // as claimed, for handlers
	doubt       *doubt       // the transaction whose outcome the next claim finds out
	given       *outcome     // what applying begins with: settleDeath has halted it
	above       epoch.Epoch  // seen by another system: the next claim's epoch is higher
	progress    bool         // since the last wait
	unconfirmed int
	unclaimedAt time.Time // since when there is no claim
	attempts    int       // failed attempts to claim since then
	halts       *waits.Backoff
	retries     *waits.Backoff

	// The messages.
	batch  Batch     // read, and not applied yet
	bisect bisection // of the messages from fence.Next on
	death  *death    // of the first message, until the next claim
	begun  bool      // the first message of all was compared with the position
	hung   bool      // a call hung on one of its messages: see recall
	hang   *hang     // a call hangs: the partition is given up

	background []*background
	applied    []chan struct{} // of each function of Handlers.Background: see [Background.Applied]

	// What others see or do.
	replays replays
	caught  atomic.Bool // a transaction was under way when the lease was lost
	mu      sync.Mutex
	rest    rest
}

// own is what a source calls for each tenure. It returns when the partition is revoked or lost, or
// when a call hangs. Until then it claims again, whatever has ended the last claim. ctx ends when
// the lease is lost.
func (r *runner) own(ctx context.Context, t Tenure) {
	timeout, err := r.batchTimeout(t)
	if err != nil {
		r.stop(&fatalError{err})
		return
	}
	if h := r.hung.of(t.Origin().Partition); h != nil { // never two at a time
		t.GiveUp(h.returned)
		return
	}
	p := r.newPartition(ctx, t, timeout)
	r.Observe(Granted{Partition: p.id})
	defer p.giveUpHung() // runs last: the source may let others have the partition from then on
	r.owns(p)
	defer r.disowns(p)
	defer r.troubles.Left(p.id)
	defer r.lags.Left(p.id)
	defer p.dropClaim()
	for p.hang == nil && p.running(ctx) {
		p.acted = r.acted.Next() // before the claim, so that an action during the claim is not missed
		// What the handler wrote before it ended its transaction may be committed without the
		// fence. Calling it again would write that again, in whichever tenure of this process.
		if err := r.endedTxOf(p.id); err != nil {
			p.report.stoppedForGood(p.fence, err)
			p.waitOr(ctx, forever, nil)
			break
		}
		var in time.Duration
		began := time.Now()
		if err := p.ensureClaim(ctx); p.hang != nil {
			break
		} else if errors.Is(err, ErrLost) {
			p.report.lost(p.fence, err, p.caught.Load())
			return
		} else if err != nil {
			in = p.unclaimed(ctx, err, time.Since(began))
		} else {
			in = p.ended(p.consume())
		}
		// The background work ends now, and not only after the wait.
		if !p.keepClaim || p.claim.broken() != nil {
			p.dropClaim()
		}
		p.waitOr(p.whileClaimed(ctx), in, p.acted) // an operator may have done what it waits for
	}
	if ctx.Err() != nil {
		p.report.lost(p.fence, context.Cause(ctx), p.caught.Load())
		return
	}
	p.dropClaim()
	if p.hang != nil && p.running(ctx) {
		p.report.givenUp(p.fence, p.overdue())
		return
	}
	p.report.drained(p.fence)
}

// giveUpHung makes the source keep the partition from this process while a call for it hangs. It
// first records the message, so that the next owner can read which one it was.
func (p *partition) giveUpHung() {
	if p.hang != nil {
		p.recordHang()
		p.tenure.GiveUp(p.hang.returned)
	}
}

func (r *runner) newPartition(ctx context.Context, t Tenure, timeout time.Duration) *partition {
	r.life.Leased(t.Term())
	id := t.Origin().Partition
	p := &partition{
		run: r, tenure: t, id: id, committer: r.committerOf(id), logger: aside.Named(r.log(id), t), timeout: timeout, lease: ctx,
		bisect: newBisection(r.RetryMin, r.RetryMax), unclaimedAt: time.Now(),
		halts:   waits.New(r.HaltMin, r.HaltMax),
		retries: waits.New(r.RetryMin, r.RetryMax),
		replays: replays{added: make(chan struct{}, 1), tries: map[int64]int{}, settled: map[int64]int64{}},
	}
	p.report = report{run: r, id: id, tenure: t, logger: p.logger}
	_, p.hung = r.suspects.Of(id)
	for range r.backgrounds {
		p.applied = append(p.applied, make(chan struct{}, 1))
	}
	return p
}

// dropClaim ends background work, and then the claim, which the sink has until the next one.
func (p *partition) dropClaim() {
	p.keepClaim = false
	p.stopBackground()
	if p.claim != nil {
		p.claim.end(nil)
		p.claim = nil
		p.unclaimedAt = time.Now()
	}
}

// ended handles the end of consuming under a claim, and returns how long to wait. It reports the
// outcome even if the tenure is over, because a refused transaction is still news.
func (p *partition) ended(out outcome) time.Duration {
	if p.progress {
		p.halts.Reset()
		p.retries.Reset()
		p.progress = false
	}
	// The sink has our fence although it refused it: then the transaction had changed the fence itself,
	// as a handler may that writes to its table. No other process has the partition.
	if _, refused := fenceAt(p.fence, out.err); refused {
		changed, failed := p.look(p.lease)
		if out.own = changed == nil && failed == nil; out.own && out.action == replaced {
			out.action = claimAgain
		}
	}
	s := next(p.fence, out)
	p.keepClaim, p.above = s.keep, max(p.above, s.above)
	in := p.pauseFor(s.pause)
	if s.back != nil {
		p.goBack(s.back)
		return in
	}
	if s.doubt {
		p.doubt = &doubt{p.fence, out.err, out.beside}
	}
	if s.never {
		p.run.endedTx(p.id, out.err)
	}
	p.hang = cmp.Or(p.hang, out.hang)
	p.report.ended(p.fence, out, !p.running(p.lease), in)
	return in
}

// unclaimed returns how long to wait after a failed claim. Nothing is reported if the tenure has
// ended meanwhile, which is then the cause.
func (p *partition) unclaimed(ctx context.Context, err error, took time.Duration) time.Duration {
	if !p.running(ctx) {
		return 0
	}
	n := nextClaim(err, p.unconfirmed)
	p.attempts++
	if n.unconfirmed {
		p.unconfirmed++
	}
	in := p.pauseFor(n.pause)
	p.report.unclaimed(p.fence, n, err, took, in)
	return in
}

// pausedMax is how soon a paused partition is tried again without news of a resume.
const pausedMax = 5 * time.Second

// pauseFor returns the wait. Retries and halts have their own backoffs: a partition that halts
// again after a day of retries is tried soon.
func (p *partition) pauseFor(what pause) time.Duration {
	switch what {
	case retryPause:
		return p.retries.Next()
	case haltPause:
		return p.halts.Next()
	case operatorPause:
		p.retries.Reset()
		return min(p.halts.Next(), pausedMax)
	case noEnd:
		return forever
	default:
		return 0
	}
}

// whileClaimed returns the context to wait in: background work may end the claim during a wait.
func (p *partition) whileClaimed(ctx context.Context) context.Context {
	if p.claim == nil {
		return ctx
	}
	return p.claim
}

// outcome is how a claim, or a batch under it, has ended. next decides what follows.
type outcome struct {
	action action
	err    error
	above  epoch.Epoch // with claimAbove
	beside bool        // the transaction moves no position: it was of background work or a replay
	own    bool        // the sink still has our fence: the transaction that was refused had changed it itself
	hang   *hang       // with abandon
	looked bool        // with replaced: a look at an idle partition found it, and no transaction was refused
}

// running reports whether the tenure may begin something: it is neither revoked nor lost.
func (p *partition) running(ctx context.Context) bool {
	select {
	case <-p.tenure.Draining():
		return false
	case <-ctx.Done():
		return false
	default:
		return true
	}
}

// untilRevoked returns a context that also ends when the partition is revoked, for what must not
// outlast the beginning of a drain.
func (p *partition) untilRevoked(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		select {
		case <-p.tenure.Draining():
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, cancel
}

// forever is a wait that only the end of the tenure ends.
const forever time.Duration = -1

// waitOr returns after d, when the tenure is over, or when until is closed.
func (p *partition) waitOr(ctx context.Context, d time.Duration, until <-chan struct{}) {
	if d == 0 {
		return
	}
	var elapsed <-chan time.Time
	if d != forever {
		timer := time.NewTimer(d)
		defer timer.Stop()
		elapsed = timer.C
	}
	select {
	case <-elapsed:
	case <-until:
	case <-p.tenure.Draining():
	case <-ctx.Done():
	}
}

// claim is one claim while it lasts. It is safe for concurrent use.
type claim struct {
	context.Context // ends with the claim, or when the lease is lost
	end             context.CancelCauseFunc
}

// newClaim returns a claim that ends at the latest when the lease is lost.
func newClaim(lease context.Context) *claim {
	ctx, end := context.WithCancelCause(lease)
	return &claim{ctx, end}
}

// brokenClaimError ends a claim from elsewhere: background work, or a look at the fence.
type brokenClaimError struct{ outcome }

func (*brokenClaimError) Error() string { return "the claim has ended" }

// breakWith ends the claim and all waits of the tenure. The first reason counts.
func (c *claim) breakWith(out outcome) { c.end(&brokenClaimError{out}) }

// broken returns why the claim was ended from elsewhere, or nil.
func (c *claim) broken() *brokenClaimError {
	var b *brokenClaimError
	if c != nil && errors.As(context.Cause(c), &b) {
		return b
	}
	return nil
}

// rest says whether a partition waits for messages. Meanwhile its claim and fence do not change, and the watch and
// replays may read them. partition.mu guards it.
type rest struct {
	on     bool
	times  int // how often it has rested
	since  time.Time
	replay *work         // runs beside the read
	over   chan struct{} // closed when replay is settled
}

// rests says that the partition waits for messages.
func (p *partition) rests() {
	p.committer.submitsNothing(p.id)
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
