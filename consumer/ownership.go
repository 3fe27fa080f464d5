package consumer

import (
	"context"
	"errors"
	"iter"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/backoff"
)

// ownership is one tenure as the consumer sees it: claim the partition, consume
// under the claim until something ends that, wait, and start over.
type ownership[TX any] struct {
	run       *runner[TX]
	tenure    Tenure
	loop      *loop[TX]
	partition epoch.Partition
	logger    *slog.Logger
	timeout   time.Duration   // of one transaction
	applied   []chan struct{} // of each background work: see [Background.Applied]

	*pending[TX] // the fence, and what is to be applied: the loop's while it is consumed

	doubt      *doubt   // what the next claim is made to find out
	given      *outcome // what the claim has come to as it was made
	claimValid bool     // nothing is in doubt: if the fence carries our claim still, no new one is due
	background []*background[TX]

	seen        epoch.Fence // as it was read last, which may be another process's
	above       epoch.Epoch // which another system has seen: the next claim's is higher
	progress    bool        // since the last wait
	unconfirmed int         // times in a row
	unclaimedAt time.Time   // since when there is no claim
	attempts    int         // to claim, that have failed since then
	caught      atomic.Bool // a transaction was under way when the lease was lost
	hang        *hang       // a call that hangs, for which the partition is given up
	halts       *backoff.Backoff
	retries     *backoff.Backoff
}

// outcome is what became of a batch, or of consuming under a claim.
type outcome struct {
	action action
	err    error
	above  epoch.Epoch // with claimAbove
	hang   *hang       // with abandon
}

// forever is a wait that only the end of the tenure ends.
const forever time.Duration = -1

// own spends one tenure: it claims the partition, consumes until something
// happens, and goes on from there, until the source takes the partition back.
func (r *runner[TX]) own(ctx context.Context, t Tenure) {
	timeout, err := r.batchTimeout(t)
	if err != nil {
		r.stop(&fatalError{err})
		return
	}
	if h := r.hung.of(t.Origin().Partition); h != nil { // never two at a time
		t.GiveUp(h.returned)
		return
	}
	o := r.newOwnership(ctx, t, timeout)
	p := o.partition
	r.Observe(Granted{Partition: p})
	defer o.giveUpHung()
	r.owns(o)
	defer r.disowns(o)
	defer r.unpin(o.loop)
	defer r.troubles.Left(p)
	defer r.lags.left(p)
	defer o.dropClaim()
	for o.hang == nil && o.running(ctx) {
		acted := r.acted.wait()
		if err := r.endedTxOf(p); err != nil {
			o.haltedForGood(err)
			o.wait(ctx, forever)
			break
		}
		var in time.Duration
		began := time.Now()
		if err := o.hold(ctx); o.hang != nil {
			break
		} else if errors.Is(err, ErrLost) {
			o.lost(err)
			return
		} else if err != nil {
			in = o.unclaimed(ctx, err, time.Since(began))
		} else {
			in = o.ended(o.consume())
		}
		if !o.claimValid || o.broken() != nil {
			o.dropClaim()
		}
		o.waitOr(o.whileClaimed(ctx), in, acted) // a person may have done what it waits for
	}
	if ctx.Err() != nil {
		o.lost(context.Cause(ctx))
		return
	}
	o.dropClaim()
	if o.hang != nil && o.running(ctx) {
		o.gaveUp()
		return
	}
	o.drained()
}

// giveUpHung has the source keep the partition from this process while a call for it hangs.
// The next owner can read by then which message it was.
func (o *ownership[TX]) giveUpHung() {
	if o.hang != nil {
		o.recordHang()
		o.tenure.GiveUp(o.hang.returned)
	}
}

func (r *runner[TX]) newOwnership(ctx context.Context, t Tenure, timeout time.Duration) *ownership[TX] {
	p := t.Origin().Partition
	r.life.leased(t.Term())
	o := &ownership[TX]{
		run: r, tenure: t, loop: r.pin(p), partition: p, logger: r.log(p), timeout: timeout, unclaimedAt: time.Now(),
		halts:   backoff.New(r.HaltMin, r.HaltMax),
		retries: backoff.New(r.RetryMin, r.RetryMax),
	}
	for range r.handlers.background {
		o.applied = append(o.applied, make(chan struct{}, 1))
	}
	o.pending = newPending(ctx, o)
	return o
}

// running reports whether the tenure may still make claims.
func (o *ownership[TX]) running(ctx context.Context) bool {
	select {
	case <-o.tenure.Draining():
		return false
	case <-ctx.Done():
		return false
	default:
		return true
	}
}

// hold makes sure of a claim: the one we have, where nothing is in doubt and the
// fence still carries it, and otherwise a new one. It makes none where the work under the
// last one hangs.
func (o *ownership[TX]) hold(tenure context.Context) error {
	began := time.Now()
	ctx, done := context.WithTimeout(tenure, o.timeout)
	defer done()
	ctx, cancel := o.untilRevoked(ctx) // a claim not made by then is not worth it
	defer cancel()
	if o.claimValid {
		if ours, err := o.stillOurs(ctx); err != nil || ours {
			return err
		}
	}
	if o.dropClaim(); o.hang != nil {
		return nil
	}
	got, seen, err := o.run.claim(ctx, o.tenure, o.fence.Epoch > 0, o.above)
	if seen.Partition == o.partition {
		o.seen = seen
		o.compare(seen)
	}
	if err != nil {
		return err
	}
	o.above = 0
	o.unconfirmed = 0
	o.decideDoubt(got)
	left := o.fence
	o.adoptFence(got)
	o.settleDeath(ctx, left, seen, got)
	if seen.Epoch > 0 && (left.Epoch == 0 || o.hung) { // an operator may have let it continue
		o.recallHangs(ctx)
	}
	o.claim, o.endClaim = context.WithCancelCause(tenure)
	o.startBackground()
	o.tenure.Mirror(got) // a commit in flight may have moved it since the confirmation
	o.claimed(got, seen, time.Since(began))
	return nil
}

// stillOurs reads the fence and reports whether it still carries our claim.
func (o *ownership[TX]) stillOurs(ctx context.Context) (bool, error) {
	f, err := o.run.sink.Fence(ctx, o.partition)
	if err == nil {
		err = f.Check(o.tenure.Origin())
	}
	if err != nil || f.Claim != o.fence.Claim || o.compare(f) {
		return false, err
	}
	o.adoptFence(f)
	return true, nil
}

// adoptFence takes over the fence as the sink has it. Its position may not be
// where we left it: a commit whose acknowledgement was lost had landed, a person
// has set it, or the sink was restored. What was known of the messages there is
// then about others.
func (o *ownership[TX]) adoptFence(f epoch.Fence) {
	if o.fence.Epoch > 0 && f.Next != o.fence.Next {
		o.progress = o.progress || f.Next > o.fence.Next
		o.forget()
	}
	o.fence = f
}

// dropClaim ends whatever goes on under the claim, and waits for it.
func (o *ownership[TX]) dropClaim() {
	o.claimValid = false
	o.stopBackground()
	if o.claim != nil {
		o.endClaim(nil)
		o.claim = nil
		o.unclaimedAt = time.Now()
	}
}

// consume has messages applied until the tenure is over or something happens to
// the claim, be it in the background.
func (o *ownership[TX]) consume() outcome {
	if out := o.given; out != nil {
		o.given = nil
		return *out
	}
	from := o.fence.Next
	out := o.applyAll()
	o.progress = o.progress || o.fence.Next > from
	if out.action == leave {
		o.stopBackground() // it may have news yet
	}
	if b := o.broken(); b != nil && (out.action == leave || out.action == halt) {
		return b.outcome
	}
	return out
}

// applyAll reads from the fence's position and has the loop apply what comes,
// until the read ends or something happens.
func (o *ownership[TX]) applyAll() outcome {
	if o.claim.Err() != nil {
		return outcome{action: leave}
	}
	batches := o.attach()
	defer o.detach()
	for batch, err := range batches {
		if err != nil {
			return outcome{action: halt, err: &sourceError{err}}
		}
		if out := o.apply(batch); out.action != advance {
			return out
		}
	}
	if o.pending.lost.Err() != nil || !o.running(o.claim) { // the claim's context ends a moment after the tenure's
		return outcome{action: leave}
	}
	return outcome{action: halt, err: &sourceError{errors.New("consumer: the source ended the read before the partition was revoked")}}
}

// attach gives the fence to the loop, and reads from its position. It is a function of
// its own so that its copies of the fence are not on the stack on which an idle
// partition waits for the next batch: 8 KiB of it were too few, and 16 are twice as much.
func (o *ownership[TX]) attach() iter.Seq2[Batch, error] {
	from := o.fence
	o.loop.do(func() { o.loop.attach(o.pending) })
	return o.tenure.Read(o.claim, from)
}

// detach takes the fence back from the loop.
func (o *ownership[TX]) detach() {
	left := make(chan struct{})
	o.loop.do(func() { o.loop.detach(o.pending, left) })
	<-left
}

// apply offers a batch to the loop and waits for its outcome. When the partition
// is revoked, lost, or its claim ends, only a transaction under way is waited for.
func (o *ownership[TX]) apply(b Batch) outcome {
	o.loop.do(func() { o.loop.offer(o.pending, b) })
	select {
	case out := <-o.outcome:
		return out
	case <-o.tenure.Draining():
	case <-o.claim.Done():
	}
	o.loop.do(func() { o.loop.revoke(o.pending) })
	return <-o.outcome
}

// whileClaimed returns a context that ends with the claim, if there is one, or
// with ctx.
func (o *ownership[TX]) whileClaimed(ctx context.Context) context.Context {
	if o.claim == nil {
		return ctx
	}
	return o.claim
}

// wait returns after d, or when the tenure is over.
func (o *ownership[TX]) wait(ctx context.Context, d time.Duration) { o.waitOr(ctx, d, nil) }

// waitOr is wait, and returns also when until is closed.
func (o *ownership[TX]) waitOr(ctx context.Context, d time.Duration, until <-chan struct{}) {
	if d == 0 {
		return // a due timer in a select also upsets the race detector in bubbles: golang/go#78156
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
	case <-o.tenure.Draining():
	case <-ctx.Done():
	}
}
