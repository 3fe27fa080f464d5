package consumer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/waits"
	"github.com/epochfence/epochfence/operate"
)

// This file decides the course of a tenure: when it claims, consumes, waits and ends (R7), and, from
// the position that a claim returns, what became of a transaction that was in doubt (R5). What the end
// of a claim means is decided in next.go. While a claim is consumed, loop.go owns the messages.

// ownership is one tenure: claim the partition, consume until the claim ends, wait, start over.
type ownership[TX any] struct {
	*tenancy[TX]
	*pending[TX] // nil while the loop has it: see attach

	claim      *claim
	doubt      *doubt   // the transaction whose outcome the next claim finds out
	given      *outcome // the outcome, if it was known when the claim was made
	claimValid bool     // nothing is in doubt: no new claim is due if the fence still carries ours
	background []*background[TX]

	above       epoch.Epoch // seen by another system: the next claim's epoch is higher
	progress    bool        // since the last wait
	unconfirmed int
	unclaimedAt time.Time // since when there is no claim
	attempts    int       // failed attempts to claim since then
	hang        *hang
	halts       *waits.Backoff
	retries     *waits.Backoff
}

// own is what a source calls for each tenure. It returns when the partition is revoked or lost, or
// when a call hangs. Until then it claims again, whatever has ended the last claim. ctx ends when
// the lease is lost.
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
		// Taken before the claim, so that an action which an operator takes during the claim is not
		// missed.
		acted := r.acted.Next()
		// What the handler wrote before it ended its transaction may be committed without the
		// fence. Calling it again would write that again, in whichever tenure of this process.
		if err := r.endedTxOf(p); err != nil {
			o.reportHaltedForGood(err)
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
		// The background work ends now, and not only after the wait.
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

// giveUpHung makes the source keep the partition from this process while a call for it hangs. It
// first records the message, so that the next owner can read which one it was.
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
		run: r, tenure: t, loop: r.pin(p), partition: p, logger: named(r.log(p), t), timeout: timeout, lease: ctx, outcome: make(chan outcome, 1),
	}
	for range r.handlers.background {
		shared.applied = append(shared.applied, make(chan struct{}, 1))
	}
	return &ownership[TX]{
		tenancy: shared, pending: newPending(shared), unclaimedAt: time.Now(),
		halts:   waits.New(r.HaltMin, r.HaltMax),
		retries: waits.New(r.RetryMin, r.RetryMax),
	}
}

// decideDoubt records the outcome of a transaction in doubt, after the claim that found it out.
func (o *ownership[TX]) decideDoubt(got epoch.Fence) {
	if o.doubt == nil {
		return
	}
	left, err, beside := o.doubt.left, o.doubt.err, o.doubt.beside
	o.doubt = nil
	became := "nothing of it was committed"
	switch {
	case beside:
		became = "it moves no position, so nobody knows whether it was committed"
	case got.Next != left.Next:
		became = "the position is another one"
	}
	o.run.recorder.add(operate.Decision{
		Kind: operate.DecidedInDoubt, Partition: o.partition, Epoch: left.Epoch, Claim: left.Claim, Owner: left.Owner,
		From: left.Next, To: got.Next, Reason: fmt.Sprintf("%s: %v", became, err), TraceID: operate.TraceOf(err),
	})
}

// doubt is a transaction whose outcome the next claim finds out.
type doubt struct {
	left   epoch.Fence
	err    error
	beside bool // it moves no position
}

// hold ensures that there is a claim. It keeps ours if nothing is in doubt and the fence still
// carries it, and otherwise makes a new one. It makes none if the work under the last one hangs.
func (o *ownership[TX]) hold(tenure context.Context) error {
	began := time.Now()
	revoked, cancel := o.untilRevoked(tenure) // a revoked partition needs no claim
	defer cancel()
	if o.claimValid {
		if ours, err := o.stillOurs(revoked); err != nil || ours {
			return err
		}
	}
	if o.dropClaim(); o.hang != nil {
		return nil
	}
	// A partition that this process has had is known: if its fence is missing now, the sink has
	// lost it, and seeding would begin at the earliest message without anybody's decision (R9).
	got, seen, err := o.run.claim(revoked, o.tenure, o.timeout, o.fence.Epoch > 0, o.above)
	if seen.Partition == o.partition {
		o.seen = seen
		o.compare(seen)
	}
	if err != nil {
		return err
	}
	o.above = 0
	o.unconfirmed = 0
	// From here on the sink has our claim. What was in doubt is decided by the position that came
	// with it (R5).
	o.decideDoubt(got)
	left := o.fence
	o.adoptFence(got)
	ctx, done := context.WithTimeout(revoked, o.timeout)
	defer done()
	o.settleDeath(ctx, left, seen, got)
	if seen.Epoch > 0 && (left.Epoch == 0 || o.hung) { // an operator may have let it continue
		o.recallHangs(ctx)
	}
	if left.Epoch == 0 {
		o.reportElsewhere(seen)
	}
	o.claim = newClaim(tenure)
	o.startBackground()
	o.tenure.Mirror(got) // a commit in flight may have moved it since the confirmation
	o.reportClaimed(got, seen, time.Since(began))
	return nil
}

// stillOurs reads the fence instead of claiming again after a halt, so that a partition that halts
// for hours does not use up an epoch at every retry. It is allowed only if nothing is in doubt. A
// fence that another process or an operator has changed is claimed anew.
func (o *ownership[TX]) stillOurs(ctx context.Context) (bool, error) {
	ctx, done := context.WithTimeout(ctx, o.timeout)
	defer done()
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

// adoptFence takes over the sink's fence. Its position may have changed: a commit whose
// acknowledgement was lost has landed, an operator has set it, or the sink was restored.
func (o *ownership[TX]) adoptFence(f epoch.Fence) {
	if o.fence.Epoch > 0 && f.Next != o.fence.Next {
		o.progress = o.progress || f.Next > o.fence.Next
		o.forget()
	}
	o.fence, o.under = f, &f
}

// compare takes over the fence of a sink that went back, and reports whether it did. The messages
// at hand are then applied again. Other partitions may have gone back, too.
func (o *ownership[TX]) compare(now epoch.Fence) (back bool) {
	err := since(o.fence, now)
	if err == nil {
		return false
	}
	o.goBack(err)
	return true
}

// unchanged reports whether the sink is known to have the fence as it was claimed and advanced.
func (o *ownership[TX]) unchanged() bool {
	ctx, cancel := context.WithTimeout(o.lease, o.timeout)
	defer cancel()
	f, err := o.run.sink.Fence(ctx, o.partition)
	return err == nil && o.fence.CheckUnchanged(f) == nil
}

// goBack continues from the sink's position after the sink went back. The effects beyond it are
// gone as well, so those messages are applied again. Other partitions of the sink may have gone
// back too.
func (o *ownership[TX]) goBack(err *epoch.WentBackError) {
	o.reportWentBack(err)
	o.run.lookAtAll()
	o.forget()
	o.fence = err.Now
}

// dropClaim ends the claim for this process; the sink has it until the next one. Background work
// ends first.
func (o *ownership[TX]) dropClaim() {
	o.claimValid = false
	o.stopBackground()
	if o.claim != nil {
		o.claim.end(nil)
		o.claim = nil
		o.unclaimedAt = time.Now()
	}
}

// ended handles the end of consuming under a claim, and returns how long to wait. It reports the
// outcome even if the tenure is over, because a refused transaction is still news.
func (o *ownership[TX]) ended(out outcome) time.Duration {
	if o.progress {
		o.halts.Reset()
		o.retries.Reset()
		o.progress = false
	}
	// The sink has our fence although it refused it: then the transaction had changed the fence
	// itself, as a handler may that writes to its table. That is no takeover, and no other process
	// has the partition.
	if _, refused := fenceAt(o.fence, out.err); refused && o.unchanged() {
		if out.own = true; out.action == giveUp {
			out.action = claimAgain
		}
	}
	s := next(o.fence, out)
	o.claimValid, o.above = s.keep, max(o.above, s.above)
	in := o.pauseFor(s.pause)
	if s.back != nil {
		o.goBack(s.back)
		return in
	}
	if s.doubt {
		o.doubt = &doubt{o.fence, out.err, out.beside}
	}
	if s.never {
		o.run.endedTx(o.partition, out.err)
	}
	o.hang = cmp.Or(o.hang, out.hang)
	o.reportEnded(out, in)
	return in
}

// unclaimed returns how long to wait after a failed claim. Nothing is reported if the tenure has
// ended meanwhile, which is then the cause.
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
	o.reportUnclaimed(n, err, took, in)
	return in
}

// pausedMax is how soon a paused partition is tried again without news of a resume.
const pausedMax = 5 * time.Second

// pauseFor returns the wait. Retries and halts have their own backoffs: a partition that halts
// again after a day of retries is tried soon.
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

// consume applies messages until the claim or the tenure ends. The reason for which background work
// or a look has ended the claim comes first: leave and halt are only what the loop has seen of it.
func (o *ownership[TX]) consume() outcome {
	if out := o.given; out != nil {
		o.given = nil
		return *out
	}
	from := o.fence.Next
	out := o.applyAll()
	o.progress = o.progress || o.fence.Next > from
	if out.action == leave {
		o.stopBackground() // it may still end the claim
	}
	if b := o.claim.broken(); b != nil && (out.action == leave || out.action == halt) {
		return b.outcome
	}
	return out
}

// applyAll reads and applies batch by batch. The source may read ahead; the next batch is asked for
// when all messages of the last one are applied, so a partition holds one batch beside what its
// source buffers.
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

// attach hands the partition to the loop, and starts to read from the fence's position. It is a
// function of its own so that its copies of the fence are not on the stack on which an idle
// partition waits for the next batch. With them the stack would need 16 KiB instead of 8.
func (o *ownership[TX]) attach() iter.Seq2[Batch, error] {
	from, p := o.fence, o.pending
	p.claim, o.pending = o.claim, nil
	o.loop.send(attached[TX]{p, from.Next})
	return o.tenure.Read(o.claim, from)
}

// detach takes the partition back from the loop. It waits for a replay under way, never for a
// transaction: apply has waited for that.
func (o *ownership[TX]) detach() {
	back := make(chan *pending[TX], 1)
	o.loop.send(detaching[TX]{o.tenancy, back})
	o.pending = <-back
	o.hang = cmp.Or(o.hang, o.hungReplay)
}

// apply offers a batch to the loop and waits for its outcome. If the partition is revoked or lost,
// or the claim ends, it waits only for a transaction under way.
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

// whileClaimed returns the context to wait in: background work may end the claim during a wait.
func (o *ownership[TX]) whileClaimed(ctx context.Context) context.Context {
	if o.claim == nil {
		return ctx
	}
	return o.claim
}
