package consumer

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/epochfence/epochfence/epoch"
)

// ownership is one tenure as the consumer sees it.
type ownership[TX any] struct {
	run       *runner[TX]
	tenure    Tenure
	committer *committer[TX]
	partition epoch.Partition
	logger    *slog.Logger
	timeout   time.Duration // of one transaction

	holding *holding[TX] // while consuming; guarded by the committer's mutex
	side    *side[TX]    // of the claim, nil without Options.Beside; likewise

	fence       epoch.Fence // as last claimed and advanced; zero before the first claim
	keep        bool        // nothing is in doubt: if the fence carries our claim still, no new one is due
	above       epoch.Epoch // which another system has seen: the next claim's is higher
	probe       probe       // of the messages from fence.Next on
	begun       bool        // where the first message lies was looked at
	progress    bool        // since the last wait
	unconfirmed int         // times in a row
	halts       retryWait
	retries     retryWait
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
	p := t.Origin().Partition
	o := &ownership[TX]{
		run: r, tenure: t, committer: r.pin(), partition: p, logger: r.log(p), timeout: timeout,
		probe:   probe{wait: newRetryWait(r.RetryMin, r.RetryMax), pause: newRetryWait(min(r.RetryMin, contended), r.RetryMax)},
		halts:   newRetryWait(r.HaltMin, r.HaltMax),
		retries: newRetryWait(r.RetryMin, r.RetryMax),
	}
	defer r.unpin(o.committer)
	defer r.troubles.left(p)
	defer o.endBeside()
	for o.running(ctx) {
		if err := r.escapedFrom(p); err != nil {
			o.escaped(err)
			o.wait(ctx, forever)
			break
		}
		var in time.Duration
		if err := o.hold(ctx); errors.Is(err, ErrLost) {
			o.lost(err)
			return
		} else if err != nil {
			in = o.unclaimed(ctx, err)
		} else {
			in = o.ended(o.consume(ctx))
		}
		if !o.keep || o.committer.brokenOutcome(o.side) != nil {
			o.keep = false
			o.endBeside()
		}
		o.wait(o.whileClaimed(ctx), in)
	}
	if ctx.Err() != nil {
		o.lost(context.Cause(ctx))
		return
	}
	o.endBeside()
	o.logger.Info("drained", "epoch", o.fence.Epoch, "next", o.next())
	r.Observer.Observe(Drained{Partition: p, Epoch: o.fence.Epoch, Next: o.next()})
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
// fence still carries it, and otherwise a new one.
func (o *ownership[TX]) hold(tenure context.Context) error {
	began := time.Now()
	ctx, done := o.claiming(tenure)
	defer done()
	if o.keep {
		f, err := o.run.sink.Fence(ctx, o.partition)
		if err == nil {
			err = f.Check(o.tenure.Origin())
		}
		if err != nil {
			return err
		}
		if f.Claim == o.fence.Claim && !o.compare(f) {
			o.stand(f)
			return nil
		}
		o.keep = false
	}
	o.endBeside()
	got, seen, err := o.run.claim(ctx, o.tenure, o.fence.Epoch > 0, o.above)
	if seen.Partition == o.partition {
		o.compare(seen)
	}
	if err != nil {
		return err
	}
	o.above = 0
	o.unconfirmed = 0
	o.stand(got)
	o.beside(tenure)
	o.tenure.Mirror(got) // a commit in flight may have moved it since the confirmation
	about := []any{"epoch", got.Epoch, "claim", got.Claim, "next", got.Next}
	if seen.Epoch == 0 {
		about = append(about, "begins", o.run.began(got))
	} else {
		about = append(about, "replaced_epoch", seen.Epoch, "replaced_claim", seen.Claim, "replaced_owner", seen.Owner)
	}
	level := slog.LevelInfo
	if o.run.troubles.claimed(o.partition); o.run.troubles.troubled(o.partition) {
		level = slog.LevelDebug // one of many, perhaps
	}
	o.logger.Log(ctx, level, "claimed", about...)
	o.run.Observer.Observe(Claimed{Fence: got, Seen: seen, Took: time.Since(began)})
	return nil
}

// stand takes over the fence as the sink has it. Its position may not be where
// we left it: a commit whose acknowledgement was lost had landed, a person has
// set it, or the sink was restored. What was known of the messages there is then
// about others.
func (o *ownership[TX]) stand(f epoch.Fence) {
	if o.fence.Epoch > 0 && f.Next != o.fence.Next {
		o.progress = o.progress || f.Next > o.fence.Next
		o.probe.passed(o.probe.suspects)
	}
	o.fence = f
	o.committer.mu.Lock()
	defer o.committer.mu.Unlock()
	o.side.moved(f)
}

// claiming returns the context of one attempt to claim. It is bounded, and ends
// when the partition is asked back: a claim not made by then is not worth it.
func (o *ownership[TX]) claiming(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(ctx, o.timeout)
	go func() {
		select {
		case <-o.tenure.Draining():
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, cancel
}

// consume has messages applied until the tenure is over or something happens to
// the claim, be it in the work beside the messages.
func (o *ownership[TX]) consume(ctx context.Context) outcome {
	out, s := o.applyAll(ctx), o.side
	if out.end == left {
		o.endBeside() // it may have news yet
	}
	if broken := o.committer.brokenOutcome(s); broken != nil && (out.end == left || out.end == halted) {
		return *broken
	}
	return out
}

// applyAll reads from the fence's position and has the committer apply what
// comes, until the read ends or something happens.
func (o *ownership[TX]) applyAll(ctx context.Context) outcome {
	reading, cancel := context.WithCancel(ctx)
	defer cancel()
	h := newHolding(reading, o)
	if out := o.committer.consuming(h, cancel); out != nil {
		return *out
	}
	defer o.committer.consumed(o)
	defer func() {
		o.progress = o.progress || h.fence.Next > o.fence.Next
		o.fence = h.fence
	}()
	l := o.run.lookout
	at := l.begin(h.fence, o.tenure.Term(), cancel)
	out := o.readAll(reading, ctx, h, at)
	if err := l.end(at); err != nil && out.end != refused && out.end != inDoubt && out.end != escaped {
		return foundOut(err)
	}
	return out
}

func (o *ownership[TX]) readAll(reading, ctx context.Context, h *holding[TX], at *post) outcome {
	for ms, err := range o.tenure.Read(reading, h.fence) {
		if err == nil {
			err = inOrder(h.fence, ms)
		}
		if err != nil {
			return outcome{end: halted, err: err}
		}
		if len(ms) == 0 {
			continue
		}
		if o.run.lookout.busy(at) != nil {
			return outcome{end: left}
		}
		o.begins(h.fence, ms[0])
		if out := o.committer.apply(h, ms); out.end != applied {
			return out
		}
		o.run.lookout.quiet(at, h.fence)
	}
	if !o.running(ctx) {
		return outcome{end: left}
	}
	return outcome{end: halted, err: errors.New("consumer: the source ended the read before the partition was asked back")}
}

// begins says so if a partition of which nothing was applied yet has lost its
// beginning meanwhile, as in a log at its limit. That is no loss to the group.
func (o *ownership[TX]) begins(f epoch.Fence, first Message) {
	if !o.begun && !f.Applied && first.Offset > f.Next {
		o.logger.Info("begins at the first message there is, above its position: nothing was applied yet", "next", f.Next, "first", first.Offset)
	}
	o.begun = true
}

// inOrder checks what the source promises: nothing below the position, nothing
// twice.
func inOrder(f epoch.Fence, ms []Message) error {
	next := f.Next
	for _, m := range ms {
		if m.Offset < next {
			return &PositionError{Partition: f.Partition, Kind: ErrOutOfOrder, Position: next, Found: m.Offset}
		}
		next = m.Offset + 1
	}
	return nil
}

// wait returns after d, or when the tenure is over.
func (o *ownership[TX]) wait(ctx context.Context, d time.Duration) {
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
	case <-o.tenure.Draining():
	case <-ctx.Done():
	}
}
