package lease

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/backoff"
)

// Work is the work of one transaction under a lease. The transaction commits only if no other process
// has claimed the resource since.
//
// run names the transaction: its Partition is the resource in the group, its Offset is the number of
// transactions that were committed before, and its Under is the claim. Package guard, an outbox and
// cassink's Tx take it as a message. e is the claim's epoch, the fencing token for other systems: it
// grows with each claim, whatever the store of the leases has lost.
//
// Work may be called again if its transaction was rolled back. ctx ends when the lease is lost.
type Work[TX any] func(ctx context.Context, tx TX, run epoch.Message, e epoch.Epoch) error

// Do waits for the lease of a resource, claims the resource in a sink, and runs work in a transaction
// of the sink's database. It commits the transaction only if no other process has claimed the resource
// meanwhile: a process that was paused during work changes nothing. Then Do releases the lease. Do is
// [Member.Acquire], [Claim] and [Claimed.Do], and returns their errors.
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

	mu    sync.Mutex // one transaction at a time
	fence epoch.Fence
}

// Claim claims the resource of a lease in a sink, whose fence then refuses all earlier claims. It first
// proves the lease by [Held.Confirm]. The fence is a partition of the sink: its group is
// [Options.Group], its topic and number are those of the resource. Operators see, pause and evict it
// as any other with the command epochfence.
//
// Claim tries again until ctx or the lease ends while another process claims at the same time, or the
// database is out of reach. Its errors match [ErrLost], [epoch.ErrPaused], and those of
// [epoch.Fence.Check] if a consumer has the same group and topic. Processes that use one sink must also
// use one store for the leases of a group: with two stores, two processes hold the lease, and claim in turn.
func Claim[TX any](ctx context.Context, h *Held, sink epoch.Sink[TX]) (*Claimed[TX], error) {
	c := &Claimed[TX]{Held: h, sink: sink, origin: epoch.Origin{
		Partition: epoch.Partition{Group: h.m.Group, Topic: h.Name, Number: h.Number},
		Log:       epoch.LeaseLog,
		Source:    epoch.LeaseLog, // also of a store that was emptied: epochs continue
	}}
	if err := c.claim(ctx, 0); err != nil {
		return nil, fmt.Errorf("lease: claim %s: %w", h.Resource, err)
	}
	return c, nil
}

// Epoch returns the epoch of the claim.
func (c *Claimed[TX]) Epoch() epoch.Epoch {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.fence.Epoch
}

// Do runs work in a transaction, and commits it if the claim still stands. It runs one transaction at a
// time. A long job calls Do for each of its steps, and [Held.Progress] between them.
//
// If the database refuses the transaction for a reason that passes, or another claim of this lease is
// needed, such as after an operator's action, Do calls work again, until ctx or the lease ends. If it
// is not known whether the transaction was committed, Do claims again and finds out. It returns an
// error that matches [epoch.ErrInDoubt] only if ctx or the lease has ended before.
//
// The other errors are those of work and of the sink, with [ErrLost] if the lease was lost. Nothing is
// committed then, except after an [epoch.ErrTxEndedByHandler].
func (c *Claimed[TX]) Do(ctx context.Context, work Work[TX]) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	ctx, cancel := c.whileHeld(ctx)
	defer cancel()
	err := c.Err()
	if err == nil {
		err = c.do(ctx, work)
	}
	if err != nil {
		if over := c.Err(); over != nil && !errors.Is(err, ErrLost) {
			err = fmt.Errorf("%w: %w", over, err)
		}
		return fmt.Errorf("lease: do %s: %w", c.Resource, err)
	}
	return nil
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

func (c *Claimed[TX]) do(ctx context.Context, work Work[TX]) error {
	pause := backoff.New(pauseMin, pauseMax)
	for {
		from := c.fence.Next
		err := c.try(ctx, work)
		if err == nil || errors.Is(err, epoch.ErrTxEndedByHandler) {
			return err
		}
		low, isLow := errors.AsType[*epoch.LowEpochError](err)
		switch {
		case errors.Is(err, epoch.ErrInDoubt), errors.Is(err, epoch.ErrStale), errors.Is(err, epoch.ErrMoved), isLow:
			var above epoch.Epoch
			if isLow {
				above = low.Seen
			}
			if again := c.claim(ctx, above); again != nil {
				return fmt.Errorf("%w; then %w", err, again)
			}
			if errors.Is(err, epoch.ErrInDoubt) && c.fence.Next > from {
				return nil
			}
		case !errors.Is(err, epoch.ErrTransient):
			return err
		}
		if !backoff.Sleep(ctx, pause.Next()) {
			return err
		}
	}
}

// Pauses between two tries.
const pauseMin, pauseMax = 10 * time.Millisecond, time.Second

// try runs work in one transaction, which counts itself in the fence's position.
func (c *Claimed[TX]) try(ctx context.Context, work Work[TX]) error {
	under := c.fence
	p := under.Partition
	run := epoch.Message{Partition: p, Offset: under.Next, Mark: epoch.NoMark, Time: time.Now(), Under: &under}
	a := epoch.Advance{Partition: p, Claim: under.Claim, From: under.Next, To: under.Next + 1, Mark: epoch.NoMark}
	err := c.sink.Commit(ctx, []epoch.Advance{a}, func(ctx context.Context, tx TX) error {
		return work(ctx, tx, run, under.Epoch)
	})
	if err == nil {
		c.fence.Next = a.To
	}
	return err
}

// claim makes this process the owner of the fence: READ, CHECK, CONFIRM, SWAP, as package epoch says.
func (c *Claimed[TX]) claim(ctx context.Context, above epoch.Epoch) error {
	pause := backoff.New(pauseMin, pauseMax)
	for {
		f, err := c.swap(ctx, above)
		if err == nil {
			c.fence = f
			return nil
		}
		passes := errors.Is(err, epoch.ErrStale) || errors.Is(err, epoch.ErrTransient) || errors.Is(err, epoch.ErrInDoubt)
		if over := c.Err(); over != nil || !passes || !backoff.Sleep(ctx, pause.Next()) {
			return errors.Join(err, over)
		}
	}
}

func (c *Claimed[TX]) swap(ctx context.Context, above epoch.Epoch) (epoch.Fence, error) {
	seen, err := c.read(ctx)
	if err != nil {
		return epoch.Fence{}, err
	}
	if err := errors.Join(seen.Check(c.origin), seen.CheckRunning()); err != nil {
		return epoch.Fence{}, err
	}
	generation, err := c.Confirm(ctx) // after the read, and never before
	if err != nil {
		if c.Err() == nil {
			err = fmt.Errorf("%w: %w", epoch.ErrTransient, err)
		}
		return epoch.Fence{}, err
	}
	claim := epoch.NewClaim(epoch.Lease{Origin: c.origin, Generation: generation, Owner: c.Owner()})
	claim.Above = above
	return c.sink.Claim(ctx, seen, claim)
}

// read returns the fence, which it adds if there is none.
func (c *Claimed[TX]) read(ctx context.Context) (epoch.Fence, error) {
	seen, err := c.sink.Fence(ctx, c.origin.Partition)
	if !errors.Is(err, epoch.ErrMissing) {
		return seen, err
	}
	first := epoch.Position{Mark: epoch.NoMark}
	if err := c.sink.Seed(ctx, []epoch.Start{{Origin: c.origin, Next: first, Earliest: first}}); err != nil {
		return epoch.Fence{}, err
	}
	return c.sink.Fence(ctx, c.origin.Partition)
}
