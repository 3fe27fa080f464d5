package consumer

import (
	"cmp"
	"context"
	"errors"
	"iter"
	"time"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/backoff"
)

// ownership is one tenure as the consumer sees it: claim the partition, consume
// under the claim until something ends that, wait, and start over.
type ownership[TX any] struct {
	*tenancy[TX]
	*pending[TX] // nil while the loop has it: see attach

	claim      *claim   // nil without one
	doubt      *doubt   // what the next claim is made to find out
	given      *outcome // what the claim has come to as it was made
	claimValid bool     // nothing is in doubt: if the fence carries our claim still, no new one is due
	background []*background[TX]

	above       epoch.Epoch // which another system has seen: the next claim's is higher
	progress    bool        // since the last wait
	unconfirmed int         // times in a row
	unclaimedAt time.Time   // since when there is no claim
	attempts    int         // to claim, that have failed since then
	hang        *hang       // a call that hangs, for which the partition is given up
	halts       *backoff.Backoff
	retries     *backoff.Backoff
}

// own spends one tenure: it claims the partition, consumes until something
// happens, and continues from there, until the source takes the partition back.
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
			o.tellHaltedForGood(err)
			o.wait(ctx, forever)
			break
		}
		var in time.Duration
		began := time.Now()
		if err := o.hold(ctx); o.hang != nil {
			break
		} else if errors.Is(err, ErrLost) {
			o.leaseLost(err)
			return
		} else if err != nil {
			in = o.unclaimed(ctx, err, time.Since(began))
		} else {
			in = o.ended(o.consume())
		}
		if !o.claimValid || o.claim.broken() != nil {
			o.dropClaim()
		}
		o.waitOr(o.whileClaimed(ctx), in, acted) // an operator may have done what it waits for
	}
	if ctx.Err() != nil {
		o.leaseLost(context.Cause(ctx))
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
	shared := &tenancy[TX]{
		run: r, tenure: t, loop: r.pin(p), partition: p, logger: r.log(p), timeout: timeout, lease: ctx, outcome: make(chan outcome, 1),
	}
	for range r.handlers.background {
		shared.applied = append(shared.applied, make(chan struct{}, 1))
	}
	return &ownership[TX]{
		tenancy: shared, pending: newPending(shared), unclaimedAt: time.Now(),
		halts:   backoff.New(r.HaltMin, r.HaltMax),
		retries: backoff.New(r.RetryMin, r.RetryMax),
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
	o.claim = newClaim(tenure)
	o.startBackground()
	o.tenure.Mirror(got) // a commit in flight may have moved it since the confirmation
	o.tellClaimed(got, seen, time.Since(began))
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
// where we left it: a commit whose acknowledgement was lost had landed, an operator
// has set it, or the sink was restored. What was known of the messages there is
// then about others.
func (o *ownership[TX]) adoptFence(f epoch.Fence) {
	if o.fence.Epoch > 0 && f.Next != o.fence.Next {
		o.progress = o.progress || f.Next > o.fence.Next
		o.forget()
	}
	o.fence = f
}

// compare takes over the fence of a sink that went back, and reports whether it did. The
// messages at hand are then applied again, and other partitions may have to be.
func (o *ownership[TX]) compare(now epoch.Fence) (back bool) {
	err := since(o.fence, now)
	if err == nil {
		return false
	}
	o.goBack(err)
	return true
}

func (o *ownership[TX]) goBack(err *epoch.WentBackError) {
	o.tellWentBack(err)
	o.run.lookAtAll()
	o.forget()
	o.fence = err.Now
}

// dropClaim ends whatever runs under the claim, and waits for it.
func (o *ownership[TX]) dropClaim() {
	o.claimValid = false
	o.stopBackground()
	if o.claim != nil {
		o.claim.end(nil)
		o.claim = nil
		o.unclaimedAt = time.Now()
	}
}

// ended takes in how consuming under a claim came to an end, and returns how long to wait.
// It reports so for a tenure that is over as well: that a transaction was refused is news all
// the same.
func (o *ownership[TX]) ended(out outcome) time.Duration {
	if o.progress {
		o.halts.Reset()
		o.retries.Reset()
		o.progress = false
	}
	s := next(o.fence, out)
	o.claimValid, o.above = s.keep, max(o.above, s.above)
	in := o.pauseFor(s.pause)
	if s.back != nil {
		o.goBack(s.back)
		return in
	}
	if s.doubt {
		o.doubt = &doubt{o.fence, out.err}
	}
	if s.never {
		o.run.endedTx(o.partition, out.err)
	}
	o.hang = cmp.Or(o.hang, out.hang)
	o.tellEnded(out, in)
	return in
}

// unclaimed takes in why there is no claim, after an attempt that took so long, and returns
// how long to wait.
func (o *ownership[TX]) unclaimed(ctx context.Context, err error, took time.Duration) time.Duration {
	if !o.running(ctx) {
		return 0
	}
	n := nextClaim(err, o.unconfirmed)
	o.attempts++
	if n.unconfirmed {
		o.unconfirmed++
	}
	in := o.pauseFor(n.pause)
	o.tellUnclaimed(n, err, took, in)
	return in
}

// pausedMax is how soon a paused partition is tried again, should nobody tell before
// that it was resumed.
const pausedMax = 5 * time.Second

func (o *ownership[TX]) pauseFor(p pause) time.Duration {
	switch p {
	case retryPause:
		return o.retries.Next()
	case haltPause:
		return o.halts.Next()
	case operatorPause:
		o.retries.Reset()
		return min(o.halts.Next(), pausedMax)
	case noEnd:
		return forever
	default:
		return 0
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
	if b := o.claim.broken(); b != nil && (out.action == leave || out.action == halt) {
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
	if o.lease.Err() != nil || !o.running(o.claim) { // the claim's context ends a moment after the tenure's
		return outcome{action: leave}
	}
	return outcome{action: halt, err: &sourceError{errors.New("consumer: the source ended the read before the partition was revoked")}}
}

// attach hands the fence, and what is to be applied, to the loop, and reads from its position. It is a function of
// its own so that its copies of the fence are not on the stack on which an idle
// partition waits for the next batch: 8 KiB of it were too few, and 16 are twice as much.
func (o *ownership[TX]) attach() iter.Seq2[Batch, error] {
	from, p := o.fence, o.pending
	p.claim, o.pending = o.claim, nil
	o.loop.send(attached[TX]{p, from.Next})
	return o.tenure.Read(o.claim, from)
}

// detach takes them back from the loop.
func (o *ownership[TX]) detach() {
	back := make(chan *pending[TX], 1)
	o.loop.send(detaching[TX]{o.tenancy, back})
	o.pending = <-back
	o.hang = cmp.Or(o.hang, o.hungReplay)
}

// apply offers a batch to the loop and waits for its outcome. When the partition
// is revoked, lost, or its claim ends, only a transaction under way is waited for.
func (o *ownership[TX]) apply(b Batch) outcome {
	o.loop.send(offered[TX]{o.tenancy, b})
	select {
	case out := <-o.outcome:
		return out
	case <-o.tenure.Draining():
	case <-o.claim.Done():
	}
	o.loop.send(revoked[TX]{o.tenancy})
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
