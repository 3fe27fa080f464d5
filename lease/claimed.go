package lease

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/waits"
)

// This file decides what follows a failed transaction under a lease (R5, R6). The fence in the sink
// decides who may commit. Both share epoch.TakeOver with package consumer, which decides what follows in
// verdict.go and next.go, for several partitions and for messages at fault. Here are neither: a function for both
// would be larger than follows.

// Work is the work of one transaction under a lease. The transaction commits only if no other process
// has claimed the resource since.
//
// e is the epoch of the claim, the fencing token for other systems. It grows with each claim, whatever
// the store of the leases has lost.
//
// Work may be called again if its transaction was rolled back. ctx ends when the lease is lost.
type Work[TX any] func(ctx context.Context, tx TX, e epoch.Epoch) error

// Do waits for the lease of a resource, claims the resource in a sink, and runs work in a transaction
// of the sink's database. It commits the transaction only if no other process has claimed the resource
// meanwhile. A process that was paused until then changes nothing. At the end, Do releases the lease. Do is
// [Member.Acquire], [Claim] and [Claimed.Do], and returns their errors. Work that takes longer than
// Options.MaxStall is rolled back ([ErrStalled]).
//
// When Do returns nil, work's effects were committed once. After an error that matches
// [epoch.ErrInDoubt] or [epoch.ErrTxEndedByHandler] they may have been committed. After any other error
// they were not.
func Do[TX any](ctx context.Context, m *Member, sink epoch.Sink[TX], resource string, work Work[TX]) error {
	h, err := m.Acquire(ctx, resource)
	if err != nil {
		return err
	}
	defer func() { _ = h.Release(context.WithoutCancel(ctx)) }() // else it expires; the log says so
	c, err := Claim(ctx, h, sink)
	if err != nil {
		return err
	}
	return c.Do(ctx, work)
}

// Claimed is a lease whose resource this process has claimed in a sink. Its methods are safe for
// concurrent use.
type Claimed[TX any] struct {
	*Held
	sink   epoch.Sink[TX]
	origin epoch.Origin
	sem    chan struct{}               // has an element while no transaction runs; it guards the rest
	shown  atomic.Pointer[epoch.Fence] // the same as fence, for anybody

	changed waits.Signal // shown is another one

	doubt bool        // it is not known whether a transaction of an earlier Do was committed
	fence epoch.Fence // after our last claim or commit
	gap   int64       // of its epoch to that of the claim before; 0 if there was none
}

// FenceLog is the Log and the Source of the fences that [Claim] claims. Their positions count
// transactions. Between two holders, such a fence has no live owner. Databases store FenceLog. It
// must not change.
const FenceLog = "epochfence/lease"

// Claim claims the resource of a lease in a sink, whose fence then refuses all earlier claims, also
// one of the same lease: claim each lease once. Claim first proves the lease by [Held.Confirm]. The
// fence is a partition of the sink: its group is [Options.Group], its topic and number are those of
// the resource. Operators see, pause and evict it as any other with the command epochfence.
//
// The sink must be [epoch.Transactional], as pgsink and sqlsink are. Processes that use one sink must
// also use one store for the leases of a group: with two stores, two processes hold the lease, and
// each claim of one ends that of the other.
//
// If another process claims at the same time, or the database is out of reach, Claim tries again until
// ctx or the lease ends. Its errors match [ErrLost], [epoch.ErrPaused], [epoch.ErrUnhealthy], and
// those of [epoch.Fence.Check] if a consumer has the same group and topic.
func Claim[TX any](ctx context.Context, h *Held, sink epoch.Sink[TX]) (*Claimed[TX], error) {
	if g := sink.Facts().Guarantee; g < epoch.Transactional {
		return nil, fmt.Errorf("lease: claim %s: the sink's guarantee is %v, and the work of a lock needs %v", h.Resource, g, epoch.Transactional)
	}
	c := &Claimed[TX]{Held: h, sink: sink, sem: make(chan struct{}, 1), origin: epoch.Origin{
		Partition: epoch.Partition{Group: h.m.Group, Topic: h.Name, Number: h.Number},
		Log:       FenceLog,
		Source:    FenceLog, // also of a store that was emptied: epochs continue
	}}
	c.sem <- struct{}{}
	h.claimed.Store(true)
	if err := c.claim(ctx, 0, nil); err != nil {
		return nil, fmt.Errorf("lease: claim %s: %w", h.Resource, err)
	}
	h.Progress()
	return c, nil
}

// Epoch returns the epoch of the claim.
func (c *Claimed[TX]) Epoch() epoch.Epoch { return c.Fence().Epoch }

// Fence returns the fence as this claim or its last commit has left it. Its position counts the commits
// of Do. guard.Under takes it.
func (c *Claimed[TX]) Fence() epoch.Fence { return *c.shown.Load() }

// Message returns a message of the fence for outbox.Box.Add, which the work of Do may call, and
// [Claimed.Background] sends.
func (c *Claimed[TX]) Message() epoch.Message {
	f := c.Fence()
	return epoch.Message{Partition: f.Partition, Offset: f.Next, Mark: epoch.NoMark, Under: &f}
}

// is sets the fence.
func (c *Claimed[TX]) is(f epoch.Fence) {
	c.fence = f
	c.shown.Store(&f)
	c.changed.Fire()
}

// Do runs work in a transaction, and commits it if the claim still stands. It runs one transaction at a
// time; work must not call Do of the same claim. One call may take Options.MaxStall, and a sink passes
// that limit on to its database. A long job calls Do for each of its steps. The begin and the commit of a
// step are progress.
//
// If the database refuses the transaction for a reason that passes, or another claim of this lease is
// needed, such as after an operator's action, Do calls work again, until ctx or the lease ends. If it
// is not known whether the transaction was committed, Do claims again and finds out. It returns an
// error that matches [epoch.ErrInDoubt] only if it cannot: ctx or the lease has ended, the database
// stays unhealthy, or another process has claimed meanwhile. If three transactions
// of one call lose their connection, Do returns an error.
//
// The other errors are those of work and of the sink, with [ErrLost] if the lease was lost. Nothing is
// committed then, except after an [epoch.ErrTxEndedByHandler].
func (c *Claimed[TX]) Do(ctx context.Context, work Work[TX]) error {
	defer c.atWork()()
	err := c.oneAtATime(ctx, work)
	if err == nil {
		c.Progress()
		return nil
	}
	if over := c.Err(); over != nil && !errors.Is(err, ErrLost) {
		err = fmt.Errorf("%w: %w", over, err)
	}
	return fmt.Errorf("lease: do %s: %w", c.Resource, err)
}

type inWork struct{ of any }

func (c *Claimed[TX]) oneAtATime(ctx context.Context, work Work[TX]) error {
	if ctx.Value(inWork{c}) != nil {
		return errors.New("Do was called within the work of another Do of this claim; use the transaction of that work")
	}
	ctx = context.WithValue(ctx, inWork{c.slot}, true) // for which Acquire would wait
	ctx, cancel := c.whileHeld(context.WithValue(ctx, inWork{c}, true))
	defer cancel()
	select {
	case <-c.sem:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer func() { c.sem <- struct{}{} }()
	c.Progress()
	ctx, cancel = c.bounded(ctx)
	defer cancel()
	err := c.alone(ctx, work)
	if err != nil && errors.Is(context.Cause(ctx), errOverlong) && !errors.Is(err, errOverlong) {
		err = fmt.Errorf("%w: %w", errOverlong, err)
	}
	return err
}

// bounded returns a context with the time that one call may take. Its lease is lost sooner, unless
// somebody reports progress meanwhile.
func (c *Claimed[TX]) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	if c.m.MaxStall <= 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeoutCause(ctx, c.m.MaxStall+c.m.TTL/10, errOverlong)
}

// alone does the work of a call while no other call works.
func (c *Claimed[TX]) alone(ctx context.Context, work Work[TX]) error {
	if err := c.Err(); err != nil {
		return err
	}
	if c.doubt { // of an earlier call: what it left under way must not count as ours
		if err := c.claim(ctx, 0, nil); err != nil {
			return err
		}
		c.doubt = false
	}
	return c.do(ctx, work)
}

// whileHeld returns a context that ends with ctx and with the lease.
func (c *Claimed[TX]) whileHeld(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(c.Context(), func() { cancel(context.Cause(c.Context())) })
	return ctx, func() {
		stop()
		cancel(nil)
	}
}

// Pauses between two tries, and how many transactions of one call of Do may lose their connection.
const (
	pauseMin, pauseMax = 10 * time.Millisecond, time.Second
	enoughLost         = 3
)

func (c *Claimed[TX]) do(ctx context.Context, work Work[TX]) error {
	pause, losses, said := waits.New(pauseMin, pauseMax), 0, false
	for {
		err := c.try(ctx, work)
		then, above := c.follows(err)
		switch then {
		case no:
			return err
		case workAgain:
		case claimAgain:
			if again := c.claim(ctx, above, nil); again != nil {
				return fmt.Errorf("%w; then %w", err, again)
			}
		case findOut:
			committed, unknown := c.findsOut(ctx)
			if committed {
				return nil
			}
			if unknown != nil {
				c.doubt = true
				return fmt.Errorf("%w; then %w", err, unknown)
			}
			err = fmt.Errorf("%w: the transaction was not committed: %v", epoch.ErrTransient, err) //nolint:errorlint // nothing is in doubt any more
			if losses++; losses == enoughLost {
				return err
			}
		}
		if !said {
			said = true
			c.m.log.Warn("the work of a lock was rolled back and is done again", "resource", c.String(), "epoch", c.Epoch(), "err", err)
		}
		if !waits.Sleep(ctx, pause.Next()) {
			return err
		}
	}
}

// what follows a transaction that has failed.
type follow int

const (
	no follow = iota
	workAgain
	claimAgain
	findOut
)

// follows returns what follows the error of a transaction, and the epoch to claim above. Errors about
// other partitions are those of work.
func (c *Claimed[TX]) follows(err error) (f follow, above epoch.Epoch) {
	refusal, seen := refusalOf(err, c.origin.Partition)
	switch {
	case err == nil, errors.Is(err, epoch.ErrTxEndedByHandler):
		return no, 0
	case errors.Is(err, epoch.ErrInDoubt):
		return findOut, 0
	case refusal == RefusalLowEpoch && epoch.CheckAbove(c.origin.Partition, c.Fence().Epoch, seen) != nil:
		return no, 0 // no claim can be made above it
	case refusal == RefusalLowEpoch:
		return claimAgain, seen
	case refusal == RefusalStale, refusal == RefusalMoved:
		return claimAgain, 0
	case errors.Is(err, epoch.ErrTransient) && !errors.Is(err, epoch.ErrStale) && !errors.Is(err, epoch.ErrMoved) && !errors.Is(err, epoch.ErrLowEpoch):
		return workAgain, 0
	}
	return no, 0
}

// try runs work in one transaction, which counts itself in the fence's position. If work does not
// return after ctx has ended, its transaction is abandoned, so that it keeps no lock.
func (c *Claimed[TX]) try(ctx context.Context, work Work[TX]) error {
	abandoned, stop := c.abandonedAfter(ctx)
	defer stop()
	f := c.fence
	began, event := time.Now(), Worked{Resource: c.Resource, Epoch: f.Epoch, TTL: c.m.TTL, Outcome: OutcomeFailed, Gap: c.gap}
	defer func() { // also if work panics
		event.Took = time.Since(began)
		c.m.Observe(event)
	}()
	a := epoch.Advance{Partition: f.Partition, Claim: f.Claim, From: f.Next, To: f.Next + 1, Mark: epoch.NoMark}
	err := c.sink.Commit(ctx, []epoch.Advance{a}, epoch.TxOptions{Abandoned: abandoned}, func(ctx context.Context, tx TX) error {
		return work(ctx, tx, f.Epoch)
	})
	if err == nil {
		f.Next = a.To
		c.is(f)
	}
	c.ended(&event, err)
	return err
}

// abandonedAfter returns a context that ends a while after ctx.
func (c *Claimed[TX]) abandonedAfter(ctx context.Context) (context.Context, func()) {
	abandoned, abandon := context.WithCancel(context.Background())
	stop := context.AfterFunc(ctx, func() {
		if waits.Sleep(abandoned, c.m.TTL/10) {
			abandon()
		}
	})
	return abandoned, func() {
		stop()
		abandon()
	}
}

// ended completes the event of a transaction.
func (c *Claimed[TX]) ended(e *Worked, err error) {
	refusal, by := refusalOf(err, c.origin.Partition)
	if e.Outcome, e.Err = outcomeOf(err, c.held.Err() != nil, refusal), err; e.Outcome != OutcomeRefused {
		return
	}
	e.Refusal, e.Gap = refusal, 0
	if by > e.Epoch {
		e.Gap = int64(by - e.Epoch)
	}
}

// findsOut claims again, after which the transaction is either committed or never will be, and reads
// which from the fence. It returns an error if the fence does not show it.
func (c *Claimed[TX]) findsOut(ctx context.Context) (committed bool, err error) {
	f := c.fence
	d := &doubt{under: f, ours: []epoch.ClaimID{f.Claim}}
	err = c.claim(ctx, 0, d)
	switch {
	case d.found == notCommitted:
		return false, nil // an error of the claim comes again
	case err != nil:
		return false, err
	case d.found == wasCommitted:
		return true, nil
	}
	return false, errors.New("another process has claimed the resource and worked since")
}

// doubt is a transaction whose outcome is not known.
type doubt struct {
	under epoch.Fence     // at whose position it began
	ours  []epoch.ClaimID // its claim, and those that were to replace it
	found found
}

type found int

const (
	nothing found = iota
	wasCommitted
	notCommitted
)

// sees concludes from the fence, if it could be read, that somebody else has claimed: the transaction
// cannot be committed any more.
func (d *doubt) sees(f epoch.Fence) {
	if d != nil && f.Partition == d.under.Partition && !slices.Contains(d.ours, f.Claim) && f.Next == d.under.Next && f.SetUnder == d.under.SetUnder {
		d.found = notCommitted
	}
}

// mayReplace notes a claim of ours whose swap may have landed, though its answer was lost.
func (d *doubt) mayReplace(seen epoch.Fence, c epoch.Claim) {
	if d != nil && slices.Contains(d.ours, seen.Claim) {
		d.ours = append(d.ours, c.ID)
	}
}

// replaced concludes from our claim, which has replaced a claim.
func (d *doubt) replaced(seen, got epoch.Fence) {
	if d == nil || !slices.Contains(d.ours, seen.Claim) {
		return
	}
	d.found = notCommitted
	if got.Next > d.under.Next {
		d.found = wasCommitted
	}
}

// claim makes this process the owner of the fence, and tries until it is. d is what is to be found out by it, or nil.
func (c *Claimed[TX]) claim(ctx context.Context, above epoch.Epoch, d *doubt) error {
	pause, said := waits.New(pauseMin, pauseMax), false
	for {
		err := c.takeOver(ctx, above, d)
		if err == nil {
			return nil
		}
		refusal, _ := refusalOf(err, c.origin.Partition)
		c.m.Observe(NotClaimed{Resource: c.Resource, Refusal: refusal, Err: err})
		if over := c.Err(); over != nil || stays(err) {
			return errors.Join(err, over)
		}
		if !said {
			said = true
			c.m.log.Warn("cannot claim the resource of a lease yet, trying again", "resource", c.String(), "err", err)
		}
		if !waits.Sleep(ctx, pause.Next()) {
			return errors.Join(err, context.Cause(ctx))
		}
	}
}

// stays reports whether a claim fails until somebody has changed something. Any other error may be that
// of a database out of reach.
func stays(err error) bool {
	for _, is := range []error{
		epoch.ErrPaused, epoch.ErrLogChanged, epoch.ErrForeignLease, epoch.ErrElsewhere, epoch.ErrMissing, epoch.ErrUnhealthy, epoch.ErrNoLease,
	} {
		if errors.Is(err, is) && !errors.Is(err, epoch.ErrInDoubt) {
			return true
		}
	}
	return false
}

func (c *Claimed[TX]) takeOver(ctx context.Context, above epoch.Epoch, d *doubt) error {
	got, seen, err := epoch.TakeOver(ctx, c.sink, epoch.Candidate{
		Origin:  c.origin,
		Missing: c.add,
		Confirm: func(ctx context.Context, seen epoch.Fence) (epoch.Claim, error) {
			generation, err := c.prove(ctx)
			claim := epoch.NewClaim(epoch.Lease{Origin: c.origin, Generation: generation, Owner: c.Owner()})
			claim.Above = above
			d.mayReplace(seen, claim)
			return claim, err
		},
	})
	d.sees(seen)
	if err != nil {
		return err
	}
	d.replaced(seen, got)
	if c.gap = 0; seen.Epoch > 0 {
		c.gap = int64(got.Epoch - seen.Epoch)
	}
	c.is(got)
	return nil
}

// add adds the fence and returns it.
func (c *Claimed[TX]) add(ctx context.Context) (epoch.Fence, error) {
	first := epoch.Position{Mark: epoch.NoMark}
	if err := c.sink.Seed(ctx, []epoch.Start{{Origin: c.origin, Next: first, Earliest: first}}); err != nil {
		return epoch.Fence{}, err
	}
	return epoch.FenceOf(ctx, c.sink, c.origin.Partition)
}
