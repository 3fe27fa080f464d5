package lease

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/waits"
)

// This file lends the claim of a lock to work beside the transactions of Do, such as the relay of an
// outbox. It decides when the work ends and under which claim it is called again.

// Background calls work, such as outbox.Box.Relay, until ctx or the lease ends, and returns the cause of
// that, or nil if work returns by itself. When another claim is needed, or Do has made one, the context
// of work ends, and work is called again under the next claim. Background returns the errors of a claim,
// such as [epoch.ErrPaused], and those of a transaction after which no claim may follow, such as
// [epoch.ErrTxEndedByHandler]. What a process leaves unsent is sent by the next holder that calls
// Background.
//
// Transactions of work run beside those of Do. Each may take Options.MaxStall, and begin and commit are
// progress. While neither it nor a Do has a transaction, Background reports progress for the holder. The
// sink must be an [epoch.Holding], as pgsink and sqlsink are. Do not call Background within the work of Do.
func (c *Claimed[TX]) Background(ctx context.Context, work func(ctx context.Context, b epoch.Background[TX])) error {
	err := c.background(ctx, work)
	if err != nil {
		err = fmt.Errorf("lease: background work under %s: %w", c.Resource, err)
	}
	return err
}

func (c *Claimed[TX]) background(ctx context.Context, work func(ctx context.Context, b epoch.Background[TX])) error {
	if _, ok := epoch.As[epoch.Holding[TX]](c.sink); !ok {
		return errors.New("the sink does not commit under a claim without moving a position (epoch.Holding); choose another sink")
	}
	ctx, cancel := c.whileHeld(ctx)
	defer cancel()
	pause := waits.New(pauseMin, pauseMax)
	for {
		b := c.newBeside(ctx)
		followed := make(chan struct{})
		go func() {
			defer close(followed)
			b.follow()
		}()
		func() {
			defer func() { b.end(); <-followed }() // also if work panics
			work(b.ctx, b)
		}()
		why := b.why()
		switch {
		case why.err != nil:
			return why.err
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case why.again:
			if err := c.claimInstead(ctx, b.under, why.above); err != nil {
				return err
			}
			waits.Sleep(ctx, pause.Next()) // whoever claims in turn with us shall not be asked all the time
		case c.Fence().Claim == b.under.Claim:
			return nil
		}
	}
}

// claimInstead claims again unless Do has done so since.
func (c *Claimed[TX]) claimInstead(ctx context.Context, under epoch.Fence, above epoch.Epoch) error {
	select {
	case <-c.sem:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer func() { c.sem <- struct{}{} }()
	if now := c.Fence(); now.Claim != under.Claim && now.Epoch > above {
		return nil
	}
	if err := c.claim(ctx, above, nil); err != nil {
		return err
	}
	c.Progress()
	return nil
}

var errClaimEnded = errors.New("lease: the claim has ended, and with it the background work")

// beside is one claim, as the work has it.
type beside[TX any] struct {
	c       *Claimed[TX]
	under   epoch.Fence
	ctx     context.Context // ends with the claim
	end     context.CancelFunc
	applied chan struct{}
	slot    chan struct{} // has an element while no transaction runs

	mu  sync.Mutex
	was reason
}

// reason is why the work under a claim has ended, if not by itself.
type reason struct {
	again bool // another claim is needed
	above epoch.Epoch
	err   error
}

func (c *Claimed[TX]) newBeside(ctx context.Context) *beside[TX] {
	b := &beside[TX]{c: c, under: c.Fence(), applied: make(chan struct{}, 1), slot: make(chan struct{}, 1)}
	b.ctx, b.end = context.WithCancel(ctx)
	b.slot <- struct{}{}
	return b
}

func (b *beside[TX]) why() reason {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.was
}

func (b *beside[TX]) over() bool { return b.ctx.Err() != nil }

// endFor ends the work. The first reason counts, except that an error stays after which no claim may
// follow: what it is about may have been committed.
func (b *beside[TX]) endFor(r reason) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.over() || r.err != nil {
		b.was = r
	}
	b.end()
}

// follow ends the work when Do has claimed again, wakes it when Do has committed, and reports progress
// while no transaction runs.
func (b *beside[TX]) follow() {
	var progress <-chan time.Time
	if limit := b.c.m.MaxStall; limit > 0 {
		ticks := time.NewTicker(limit / 4)
		defer ticks.Stop()
		progress = ticks.C
	}
	for next := b.under.Next; ; {
		changed := b.c.changed.Next()
		now := b.c.Fence()
		if now.Claim != b.under.Claim {
			b.end()
			return
		}
		if now.Next != next {
			next = now.Next
			waits.Notify(b.applied)
		}
		select {
		case <-changed:
		case <-progress:
			if len(b.slot) > 0 && len(b.c.sem) > 0 { // a transaction that hangs is none
				b.c.Progress()
			}
		case <-b.ctx.Done():
			return
		}
	}
}

func (b *beside[TX]) Partition() epoch.Partition { return b.under.Partition }
func (b *beside[TX]) Epoch() epoch.Epoch         { return b.under.Epoch }
func (b *beside[TX]) Applied() <-chan struct{}   { return b.applied }

// Above implements [epoch.Background].
func (b *beside[TX]) Above(seen epoch.Epoch) error {
	if b.over() || seen < b.under.Epoch {
		return nil
	}
	if err := epoch.CheckAbove(b.under.Partition, b.under.Epoch, seen); err != nil {
		return fmt.Errorf("lease: %w", err)
	}
	b.endFor(reason{again: true, above: seen})
	return nil
}

// Do implements [epoch.Background].
func (b *beside[TX]) Do(ctx context.Context, apply func(ctx context.Context, tx TX) error) error {
	defer b.c.atWork()()
	select {
	case <-b.slot:
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-b.ctx.Done():
		return errClaimEnded
	}
	defer func() { b.slot <- struct{}{} }()
	if b.over() { // select chooses at random if both are ready
		return errClaimEnded
	}
	b.c.Progress()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(b.ctx, func() { cancel(errClaimEnded) })()
	bounded, done := b.c.bounded(ctx)
	defer done()
	abandoned, stop := b.c.abandonedAfter(bounded)
	defer stop()
	h := epoch.Hold{Partition: b.under.Partition, Claim: b.under.Claim}
	err := epoch.CommitHeld(bounded, b.c.sink, h, epoch.TxOptions{Abandoned: abandoned}, apply)
	then, above := b.c.follows(err)
	refusal, _ := refusalOf(err, b.under.Partition)
	switch {
	case err == nil:
		b.c.Progress()
	case then == claimAgain, then == findOut: // in doubt: under another claim, the work reads what was committed
		b.endFor(reason{again: true, above: above})
	case errors.Is(err, epoch.ErrTxEndedByHandler), refusal != RefusalNone:
		b.endFor(reason{err: err})
	case errors.Is(context.Cause(bounded), errOverlong):
		err = fmt.Errorf("%w: %w", errOverlong, err)
	}
	return err
}
