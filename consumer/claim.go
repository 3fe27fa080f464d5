package consumer

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/operate"
)

// This file gets a claim, or keeps one that still stands. It decides what became of a transaction that was in
// doubt (R5), from the position that a claim returns; whether a message alone has caused that; and which
// fences exist before the first claim of a topic (R9). The order of a claim's steps is decided in
// epoch/takeover.go, what follows a failed attempt in next.go.

// recordDoubt records the outcome of a transaction in doubt, after the claim that found it out.
func (p *partition) recordDoubt(got epoch.Fence) {
	if p.doubt == nil {
		return
	}
	left, err, beside := p.doubt.left, p.doubt.err, p.doubt.beside
	p.doubt = nil
	became := "nothing of it was committed"
	switch {
	case beside:
		became = "it moves no position, so nobody knows whether it was committed"
	case got.Next != left.Next:
		became = "the position is another one"
	}
	p.run.recorder.Add(operate.Decision{
		Kind: operate.DecidedInDoubt, Partition: p.id, Epoch: left.Epoch, Claim: left.Claim, Owner: left.Owner,
		From: left.Next, To: got.Next, Reason: fmt.Sprintf("%s: %v", became, err), TraceID: operate.TraceOf(err),
	})
}

// doubt is a transaction whose outcome the next claim finds out.
type doubt struct {
	left   epoch.Fence
	err    error
	beside bool // it moves no position
}

// ensureClaim ensures that there is a claim. It keeps ours if nothing is in doubt and the fence still
// carries it, and otherwise makes a new one. It makes none if the work under the last one hangs.
func (p *partition) ensureClaim(tenure context.Context) error {
	began := time.Now()
	revoked, cancel := p.untilRevoked(tenure) // a revoked partition needs no claim
	defer cancel()
	if p.keepClaim {
		if ours, err := p.stillOurs(revoked); err != nil || ours {
			return err
		}
	}
	if p.dropClaim(); p.hang != nil {
		return nil
	}
	// A partition that this process has had is known: if its fence is missing now, the sink has
	// lost it, and seeding would begin at the earliest message without anybody's decision (R9).
	got, seen, err := p.run.claim(revoked, p.tenure, p.timeout, p.fence.Epoch > 0, p.above)
	if seen.Partition == p.id {
		p.report.seen = seen
		p.noticeBack(seen)
	}
	if err != nil {
		return err
	}
	p.above = 0
	p.unconfirmed = 0
	// From here on the sink has our claim. What was in doubt is decided by the position that came
	// with it (R5).
	p.recordDoubt(got)
	left := p.fence
	p.adoptFence(got)
	ctx, done := context.WithTimeout(revoked, p.timeout)
	defer done()
	p.settleDeath(ctx, left, seen, got)
	if seen.Epoch > 0 && (left.Epoch == 0 || p.hung) { // an operator may have let it continue
		p.recallHangs(ctx)
	}
	if left.Epoch == 0 {
		p.report.elsewhere(seen)
	}
	p.run.claimed(p)
	p.claim = newClaim(tenure)
	p.startBackground()
	p.tenure.Mirror(got) // a commit in flight may have moved it since the confirmation
	p.report.claimed(got, seen, p.attempts+1, time.Since(p.unclaimedAt), time.Since(began))
	p.attempts = 0
	return nil
}

// stillOurs reads the fence instead of claiming again after a halt, so that a partition that halts
// for hours does not use up an epoch at every retry. It is allowed only if nothing is in doubt. A
// fence that another process or an operator has changed is claimed anew.
func (p *partition) stillOurs(ctx context.Context) (bool, error) {
	ctx, done := context.WithTimeout(ctx, p.timeout)
	defer done()
	f, err := epoch.FenceOf(ctx, p.run.effects, p.id)
	if err == nil {
		err = f.Check(p.tenure.Origin())
	}
	if err != nil || f.Claim != p.fence.Claim || p.noticeBack(f) {
		return false, err
	}
	p.adoptFence(f)
	return true, nil
}

// adoptFence takes over the sink's fence. Its position may have changed: a commit whose
// acknowledgement was lost has landed, an operator has set it, or the sink was restored.
func (p *partition) adoptFence(f epoch.Fence) {
	if p.fence.Epoch > 0 && f.Next != p.fence.Next {
		p.progress = p.progress || f.Next > p.fence.Next
		p.forget()
	}
	p.fence, p.under = f, &f
}

// noticeBack takes over the fence of a sink that went back, and reports whether it did. The messages
// at hand are then applied again. Other partitions may have gone back, too.
func (p *partition) noticeBack(now epoch.Fence) (back bool) {
	err := since(p.fence, now)
	if err == nil {
		return false
	}
	p.goBack(err)
	return true
}

// look reads the fence, and returns how it differs from the one that was claimed and advanced, or why it
// could not be read.
func (p *partition) look(ctx context.Context) (changed, failed error) {
	ctx, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	f, err := epoch.FenceOf(ctx, p.run.effects, p.id)
	switch {
	case errors.Is(err, epoch.ErrMissing):
		return err, nil
	case err != nil:
		return nil, err
	}
	return p.fence.CheckUnchanged(f), nil
}

// goBack continues from the sink's position after the sink went back. The effects beyond it are gone
// as well, so those messages are applied again. Other partitions of the sink may have gone back too.
func (p *partition) goBack(err *epoch.WentBackError) {
	p.report.wentBack(err)
	p.run.lookAtAll()
	p.forget()
	p.fence = err.Now
}

// claim makes one attempt to become the owner of a partition ([epoch.TakeOver]). The new epoch is
// above the given one, which another system has seen.
//
// The first claim of a partition also adopts the position that the group had committed to the
// source, if the options ask for it. That position is read before the confirmation, which shows
// that the lease has held since. Each step has its own time, so that what the source takes is not
// missing from the sink's.
func (r *runner) claim(ctx context.Context, t Tenure, timeout time.Duration, known bool, above epoch.Epoch) (got, seen epoch.Fence, err error) {
	c := epoch.Candidate{Origin: t.Origin()}
	if !known {
		c.Missing = func(ctx context.Context) (epoch.Fence, error) {
			ctx, done := context.WithTimeout(ctx, timeout)
			defer done()
			return r.seed(ctx, t)
		}
	}
	c.Confirm = func(ctx context.Context, seen epoch.Fence) (epoch.Claim, error) {
		adopt, err := r.adopt(ctx, t, timeout, seen)
		if err != nil {
			return epoch.Claim{}, fmt.Errorf("find what the group had committed for %s: %w", c.Origin.Partition, &sourceError{err})
		}
		ctx, done := context.WithTimeout(ctx, timeout)
		defer done()
		lease, err := t.Confirm(ctx, seen)
		if err != nil {
			return epoch.Claim{}, &unconfirmedError{c.Origin.Partition, err}
		}
		// Offsets of one log must never be compared with those of another.
		if lease.Origin != c.Origin {
			return epoch.Claim{}, &sourceError{fmt.Errorf("claim %s of log %q: the source confirmed %s of log %q",
				c.Origin.Partition, c.Origin.Log, lease.Partition, lease.Log)}
		}
		// R2: the claim carries the lease that was confirmed after the read, and no other lease is
		// at hand here.
		claim := epoch.NewClaim(lease)
		claim.Adopt, claim.Above = adopt, above
		return claim, nil
	}
	if got, seen, err = r.effects.takeOver(ctx, timeout, c); err != nil {
		err = fmt.Errorf("consumer: %w", err)
	}
	return got, seen, err
}

// adopt returns the position that the group had committed before it used this sink, or nil. It is
// read at the first claim only (R8): afterwards the sink's position is the truth, and the source's
// is a copy.
func (r *runner) adopt(ctx context.Context, t Tenure, timeout time.Duration, seen epoch.Fence) (*epoch.Position, error) {
	if seen.Epoch > 0 || r.Start != StartCommitted {
		return nil, nil
	}
	ctx, done := context.WithTimeout(ctx, timeout)
	defer done()
	at, ok, err := t.Committed(ctx)
	if err != nil || !ok {
		return nil, err
	}
	return &at, nil
}

// unconfirmedError is returned when the source did not confirm the lease. That is ordinary while a
// rebalance is under way, so nextClaim warns only when it repeats.
type unconfirmedError struct {
	partition epoch.Partition
	err       error
}

func (e *unconfirmedError) Error() string {
	return fmt.Sprintf("confirm the lease of %s: %v", e.partition, e.err)
}

func (e *unconfirmedError) Unwrap() error { return e.err }

// seed creates fences for all partitions that the topic has now, so that a partition that is added
// later can be recognized. One partition does so for all that find no fence at the same time.
func (r *runner) seed(ctx context.Context, t Tenure) (epoch.Fence, error) {
	p := t.Origin().Partition
	err := r.seedings.once(ctx, p.Topic, func() error {
		// Another partition may have created it meanwhile.
		if _, err := epoch.FenceOf(ctx, r.effects, p); !errors.Is(err, epoch.ErrMissing) {
			return err
		}
		starts, err := t.Starts(ctx, r.Start)
		if err != nil {
			return fmt.Errorf("find where the partitions of %s start (%v): %w", p.Topic, r.Start, &sourceError{err})
		}
		if err := r.effects.Seed(ctx, starts); err != nil {
			return fmt.Errorf("create the fences of %s: %w", p.Topic, err)
		}
		return nil
	})
	switch {
	// The partition that was seeding was lost, which says nothing about this one.
	case errors.Is(err, errCutOff):
		return r.seed(ctx, t)
	case err != nil:
		return epoch.Fence{}, err
	}
	return epoch.FenceOf(ctx, r.effects, p)
}

// errCutOff means that the partition that created the fences was lost meanwhile.
var errCutOff = errors.New("cut off")

// seedings are the seedings under way, by topic. Without them, all partitions of a new topic would
// ask the source and write the same fences at the same time.
type seedings struct{ sync.Map }

type seeding struct {
	over chan struct{}
	err  error // valid when over is closed
}

// once calls do, or waits for the partition that is doing so and returns its result.
func (s *seedings) once(ctx context.Context, topic string, do func() error) error {
	own := &seeding{over: make(chan struct{}), err: errCutOff} // also if do panics
	if found, is := s.LoadOrStore(topic, own); is {
		other, _ := found.(*seeding)
		select {
		case <-other.over:
			return other.err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	defer func() {
		s.Delete(topic)
		close(own.over)
	}()
	err := do()
	if ctx.Err() == nil {
		own.err = err
	}
	return err
}

// death is a transaction with a single message that was in doubt.
type death struct {
	trial trial
	err   error
}

// deathsError is the failure of a message that has ended so many transactions without an answer
// that it counts as the cause.
type deathsError struct {
	times int
	last  error
}

func (e *deathsError) Error() string {
	if errors.Is(e.last, epoch.ErrMoved) || errors.Is(e.last, epoch.ErrStale) {
		return fmt.Sprintf("%d transactions in a row with this message alone were refused because the fence had another claim or position, and after each rollback it had the old one again: does the handler of this message write to the fence? %v", e.times, e.last)
	}
	return fmt.Sprintf("%d transactions in a row with this message alone lost their connection, while one without it committed: %v", e.times, e.last)
}

// Unwrap hides that the last transaction was in doubt: its outcome is known by now.
func (e *deathsError) Unwrap() error { return &maskedError{e.last} }

// settleDeath classifies the last death after the partition was claimed again, as got. seen is the
// fence that this claim replaced. left is the fence under which the message died.
func (p *partition) settleDeath(ctx context.Context, left, seen, got epoch.Fence) {
	d := p.death
	if d == nil {
		return
	}
	p.death = nil
	if !p.wasAlone(left, seen) || p.bisect.deaths >= enoughDeaths && !p.commits(ctx, got) {
		p.bisect.deaths = 0
		return
	}
	v := p.run.policy.died(d.trial, p.bisect.deaths, d.err)
	in := p.bisect.learn(v, d.trial, false, false)
	switch v.action {
	case retry:
		p.report.failed(p.fence, p.first(), p.bisect.attempts, v, in, 0)
	case halt:
		p.bisect.halted()
		p.given = &outcome{action: halt, err: v.err}
	}
}

// wasAlone reports whether only the message can have caused the death. Other causes are a database
// that was unavailable right after it, and another process or an operator that claimed or changed
// the partition, which ends the connection of the transaction under way.
func (p *partition) wasAlone(left, seen epoch.Fence) bool {
	return p.attempts == 0 && seen.Claim == left.Claim && seen.Next == left.Next
}

// commits reports whether the same transaction commits without the message.
func (p *partition) commits(ctx context.Context, f epoch.Fence) bool {
	return p.run.effects.commitNothing(ctx, f) == nil
}
