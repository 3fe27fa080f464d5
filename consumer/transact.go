package consumer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/epochfence/epochfence/epoch"
)

// take is what one transaction takes of one partition.
type take[TX any] struct {
	*holding[TX]
	ms      []Message
	advance epoch.Advance
}

// attempt is what became of the handler's part of a transaction.
type attempt struct {
	called bool  // the sink got as far as calling it
	err    error // the handler's
	take   int   // whose messages it failed on
	at     int   // which of them, or -1
}

// errTimeout is the cause of a transaction's end by Options.BatchTimeout.
var errTimeout = errors.New("transaction took longer than BatchTimeout")

// transact runs one transaction over what is in hand of hs and settles each of
// them.
func (c *committer[TX]) transact(hs []*holding[TX]) {
	slices.SortFunc(hs, func(a, b *holding[TX]) int { return a.partition.Compare(b.partition) })
	takes := make([]take[TX], len(hs))
	advances := make([]epoch.Advance, len(hs))
	timeout := hs[0].timeout
	for i, h := range hs {
		takes[i] = c.take(h)
		advances[i] = takes[i].advance
		timeout = min(timeout, h.timeout)
	}

	ctx, cancel := context.WithCancelCause(c.base)
	defer cancel(nil)
	ctx, done := context.WithTimeoutCause(ctx, timeout, errTimeout)
	defer done()
	for _, h := range hs {
		// One lost partition aborts them all: R13 leaves no time to sort it out.
		stop := context.AfterFunc(h.ctx, func() { cancel(context.Cause(h.ctx)) })
		defer stop()
	}

	began := time.Now()
	a := attempt{at: -1}
	err := c.sink.Commit(ctx, advances, func(ctx context.Context, tx TX) error {
		a.called = true
		for i := range takes {
			if at, err := c.handleTake(ctx, tx, &takes[i]); err != nil {
				a.err, a.take, a.at = err, i, at
				return err
			}
		}
		return nil
	})
	took := time.Since(began)
	timedOut := err != nil && errors.Is(context.Cause(ctx), errTimeout)
	c.adapt(took, timeout, timedOut)
	if timedOut {
		a.at = -1 // the message at hand when time ran out need not be the slow one
	}
	c.settle(takes, a, err, took)
}

func (c *committer[TX]) take(h *holding[TX]) take[TX] {
	ms := h.hand[:h.next(c.limit)]
	last := ms[len(ms)-1]
	return take[TX]{holding: h, ms: ms, advance: epoch.Advance{
		Partition:   h.partition,
		Claim:       h.fence.Claim,
		From:        h.fence.Next,
		To:          last.Offset + 1,
		LeaderEpoch: last.LeaderEpoch,
	}}
}

// handleTake calls the handler, or OnFailure for a message given up on.
func (c *committer[TX]) handleTake(ctx context.Context, tx TX, t *take[TX]) (at int, err error) {
	if t.given != nil {
		return 0, guard(func() error { return c.OnFailure(ctx, tx, t.ms[0], t.fence.Epoch, t.given) })
	}
	return c.handle(ctx, tx, t.ms, t.fence.Epoch)
}

// adapt keeps transactions well inside their time: it halves what they take
// when they come near it, and lets it grow again when they do not.
func (c *committer[TX]) adapt(took, timeout time.Duration, timedOut bool) {
	switch {
	case timedOut || took > timeout/2:
		c.limit = max(c.limit/2, 1)
	case took < timeout/4:
		c.limit = min(c.limit*2, c.MaxBatch)
	}
}

// settle decides for each partition of a transaction what its outcome means.
// The order of the cases matters: doubt comes before blame.
func (c *committer[TX]) settle(takes []take[TX], a attempt, err error, took time.Duration) {
	switch refused := refusedPartition(takes, err); {
	case err == nil:
		for _, t := range takes {
			c.advanced(t, took)
		}

	case errors.Is(err, epoch.ErrEscaped):
		// What the handler wrote may be committed without the fence. Trying
		// again would write it again.
		for _, t := range takes {
			c.finish(t.holding, &haltError{err: err, forever: true})
		}

	case refused >= 0:
		for i, t := range takes {
			if i == refused {
				c.finish(t.holding, refusal(err))
			} else {
				c.again(t.holding, 0)
			}
		}

	case errors.Is(err, epoch.ErrInDoubt) || !a.called:
		for _, t := range takes {
			c.finish(t.holding, &reclaimError{err})
		}

	case anyLost(takes):
		for _, t := range takes {
			c.again(t.holding, 0) // the lost ones are leaving
		}

	case a.err != nil:
		for i, t := range takes {
			if i == a.take {
				c.blame(t, a.at, len(takes) == 1, a.err)
			} else {
				c.again(t.holding, 0)
			}
		}

	default: // the database refused the commit, and did not say for whom
		for _, t := range takes {
			c.blame(t, -1, len(takes) == 1, err)
		}
	}
}

// refusedPartition returns the index of the take whose fence refused, or -1.
func refusedPartition[TX any](takes []take[TX], err error) int {
	var (
		p       epoch.Partition
		stale   *epoch.StaleError
		moved   *epoch.MovedError
		missing *epoch.MissingError
	)
	switch {
	case errors.As(err, &stale):
		p = stale.Partition
	case errors.As(err, &moved):
		p = moved.Partition
	case errors.As(err, &missing):
		p = missing.Partition
	default:
		return -1
	}
	return slices.IndexFunc(takes, func(t take[TX]) bool { return t.partition == p })
}

// refusal is what a fence's refusal means to the claim.
func refusal(err error) error {
	switch {
	case errors.Is(err, epoch.ErrStale):
		return err
	case errors.Is(err, epoch.ErrMoved):
		return &reclaimError{err}
	default:
		return &haltError{err: err}
	}
}

func anyLost[TX any](takes []take[TX]) bool {
	return slices.ContainsFunc(takes, func(t take[TX]) bool { return t.ctx.Err() != nil })
}

func (c *committer[TX]) advanced(t take[TX], took time.Duration) {
	failed := 0
	if t.given != nil {
		failed = 1
	}
	h := t.holding
	if err := h.advanced(t.advance, len(t.ms)); err != nil {
		c.finish(h, &haltError{err: fmt.Errorf("consumer: the sink committed what it had to refuse: %w", err), forever: true})
		return
	}
	h.tenure.Mirror(h.fence)
	c.Observer.Observe(Advanced{
		Partition: h.partition, Epoch: h.fence.Epoch, From: t.advance.From, To: t.advance.To,
		Messages: len(t.ms), Failed: failed, Bytes: size(t.ms), Took: took,
	})
	if len(h.hand) == 0 {
		c.finish(h, nil)
		return
	}
	c.again(h, 0)
}

func (c *committer[TX]) blame(t take[TX], at int, alone bool, cause error) {
	in, err := t.holding.blame(len(t.ms), at, alone, cause)
	if err != nil {
		c.finish(t.holding, err)
		return
	}
	c.again(t.holding, in)
}

func size(ms []Message) int {
	n := 0
	for _, m := range ms {
		n += len(m.Key) + len(m.Value)
		for _, h := range m.Headers {
			n += len(h.Key) + len(h.Value)
		}
	}
	return n
}
