package memsource

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"sync"
	"time"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/internal/tenures"
	"github.com/epochfence/epochfence/epoch"
)

// This file has what package consumer sees of a partition, and applies a log once, for tests of handlers.
// group.go answers a tenure's confirmations, and log.go has its messages.

// tenure is a [consumer.Tenure]. The broker's lock guards asked and deadline.
type tenure struct {
	*tenures.State // nil until the member has heard of it
	member         *Member
	at             topicPartition
	part           *part
	origin         epoch.Origin
	term           time.Duration

	asked    bool // the group wants it back, or has taken it
	deadline *time.Timer
}

var _ consumer.Tenure = (*tenure)(nil)

func newTenure(m *Member, at topicPartition) *tenure {
	g := m.group
	return &tenure{member: m, at: at, part: g.part(at), origin: g.origin(at), term: g.term}
}

func (t *tenure) run() {
	<-t.member.announced
	t.Run(func(ctx context.Context) { t.member.own(ctx, t) })
	t.Lose(tenures.ErrEnded)
	b := t.member.group.broker
	b.mu.Lock()
	defer b.mu.Unlock()
	t.member.stopped(t)
}

func (t *tenure) Origin() epoch.Origin { return t.origin }

func (t *tenure) Term() time.Duration { return t.term }

func (t *tenure) Starts(ctx context.Context, policy consumer.StartPolicy) ([]epoch.Start, error) {
	if err := t.heard(ctx); err != nil {
		return nil, t.failed("starts", err)
	}
	g := t.member.group
	g.broker.mu.Lock()
	defer g.broker.mu.Unlock()
	if g.origin(t.at) != t.origin {
		return nil, t.failed("starts", consumer.ErrLost) // recreated just now
	}
	var starts []epoch.Start
	for at := range g.places() {
		if at.topic != t.at.topic {
			continue
		}
		p := g.part(at)
		s := epoch.Start{Origin: g.origin(at), Next: p.position(p.begin), Earliest: p.position(p.begin)}
		switch policy {
		case consumer.StartLatest:
			s.Next = p.position(p.end)
		case consumer.StartCommitted, consumer.StartEarliest:
		default:
			return nil, t.failed("starts", fmt.Errorf("no such policy: %d", policy))
		}
		starts = append(starts, s)
	}
	return starts, nil
}

func (t *tenure) Committed(ctx context.Context) (epoch.Position, bool, error) {
	if err := t.heard(ctx); err != nil {
		return epoch.Position{}, false, t.failed("committed", err)
	}
	g := t.member.group
	g.broker.mu.Lock()
	defer g.broker.mu.Unlock()
	p, ok := g.positions[t.at]
	if g.leases[t.at] != t {
		return epoch.Position{}, false, t.failed("committed", consumer.ErrLost)
	}
	if log := t.part; p.at.Mark < 0 && p.at.Offset <= log.end {
		p.at = log.position(p.at.Offset)
	}
	return p.at, ok && !p.ours, nil
}

func (t *tenure) Confirm(ctx context.Context, seen epoch.Fence) (epoch.Lease, error) {
	if seen.Partition != t.origin.Partition {
		return epoch.Lease{}, t.failed("confirm", fmt.Errorf("the fence is that of %s", seen.Partition))
	}
	if err := t.heard(ctx); err != nil {
		return epoch.Lease{}, t.failed("confirm", err)
	}
	c := t.answer(seen)
	if c.hook != nil {
		if err := c.hook(ctx, c.Confirmation); err != nil {
			c.Err = err
		}
		// Meanwhile the member may have been frozen, or the tenure ended.
		if err := t.heard(ctx); err != nil {
			return epoch.Lease{}, t.failed("confirm", err)
		}
	}
	if lost := t.Lost(); lost != nil {
		return epoch.Lease{}, t.failed("confirm", lost)
	}
	if c.Err != nil {
		if errors.Is(c.Err, consumer.ErrLost) {
			t.Lose(c.Err)
		}
		return epoch.Lease{}, t.failed("confirm", c.Err)
	}
	return c.Lease, nil
}

type answer struct {
	Confirmation
	hook func(context.Context, Confirmation) error
}

func (t *tenure) answer(seen epoch.Fence) answer {
	g := t.member.group
	g.broker.mu.Lock()
	defer g.broker.mu.Unlock()
	a := answer{hook: g.onConfirm}
	a.Member, a.Seen = t.member, seen
	if g.leases[t.at] != t {
		a.Err = consumer.ErrLost
		return a
	}
	a.Lease = epoch.Lease{Origin: t.origin, Generation: g.generation, Owner: t.member.name}
	g.publish(t.at, seen)
	return a
}

func (t *tenure) heard(ctx context.Context) error {
	select {
	case <-t.WhenLost():
	case <-ctx.Done():
	case <-t.member.heard():
	}
	if lost := t.Lost(); lost != nil {
		return lost
	}
	return ctx.Err()
}

func (t *tenure) failed(what string, err error) error {
	return fmt.Errorf("memsource: %s %s: %w", what, t.origin.Partition, err)
}

func (t *tenure) Read(ctx context.Context, from epoch.Fence) iter.Seq2[consumer.Batch, error] {
	return t.State.Read(ctx, func(ctx context.Context, yield func(consumer.Batch) bool) error {
		next, mark := from.Next, from.Mark
		fresh := !from.Applied
		for ctx.Err() == nil {
			batch, changed, err := t.fetch(next, mark)
			var misfit *consumer.PositionError
			switch {
			case fresh && errors.As(err, &misfit) && errors.Is(err, consumer.ErrOffsetExpired):
				next, mark = misfit.Found, epoch.NoMark
			case err != nil:
				return err
			case changed != nil:
				select {
				case <-changed:
				case <-ctx.Done():
				}
			case !yield(batch):
				return nil
			default:
				fresh = false
				next, mark = batch.Next, batch.Mark
			}
		}
		return nil
	})
}

func (t *tenure) fetch(next epoch.Offset, mark epoch.Mark) (consumer.Batch, <-chan struct{}, error) {
	b := t.member.group.broker
	b.mu.Lock()
	defer b.mu.Unlock()
	if t.member.thaw != nil {
		return consumer.Batch{}, t.member.thaw, nil
	}
	batch, ready, err := t.part.fetch(t.origin.Partition, next, mark)
	if err != nil || ready {
		return batch, nil, err
	}
	return batch, t.part.changed(), nil
}

func (t *tenure) Lag(ctx context.Context, from epoch.Fence) (int64, error) {
	if err := t.heard(ctx); err != nil {
		return 0, t.failed("lag", err)
	}
	if err := from.Check(t.origin); err != nil {
		return 0, t.failed("lag", err)
	}
	b := t.member.group.broker
	b.mu.Lock()
	defer b.mu.Unlock()
	p := t.part
	return int64(len(p.messages) - p.index(max(from.Next, p.begin))), nil
}

func (t *tenure) Mirror(at epoch.Fence) {
	g := t.member.group
	g.broker.mu.Lock()
	defer g.broker.mu.Unlock()
	t.member.deliver(func() {
		if g.leases[t.at] == t && at.Partition == t.origin.Partition {
			g.publish(t.at, at)
		}
	})
}

// Apply applies all messages of the log with h, as one process of the group [DefaultGroup]. It is
// for tests of handlers on the database that they write to.
//
// Apply returns the error with which a partition halts, such as that of a message that fails for
// good without an OnFailure, or the last error before ctx ends. Messages have as many attempts as
// usual, within milliseconds. Nothing is logged. What was applied stays applied; Apply may be
// called again.
func Apply[TX any](ctx context.Context, log *Log, sink epoch.Sink[TX], h consumer.Handlers[TX]) error {
	group := log.Group(DefaultGroup)
	running, stop := context.WithCancel(log.UntilApplied(ctx))
	defer stop()
	var t trouble
	err := consumer.Run(running, group.Member("test"), sink, h, consumer.Options{
		RetryMin: time.Millisecond, RetryMax: 10 * time.Millisecond, HaltMin: time.Minute, HaltMax: time.Minute, // nobody waits that long: a halt ends Apply
		Logger: slog.New(slog.DiscardHandler),
		Observe: func(e consumer.Event) {
			if t.observe(e) {
				stop()
			}
		},
	})
	switch {
	case err != nil:
		return err
	case group.isApplied():
		return nil
	case t.last != nil:
		return fmt.Errorf("memsource: %s is not applied: %w", log.Name(), t.last)
	default:
		return fmt.Errorf("memsource: %s is not applied: %w", log.Name(), context.Cause(ctx))
	}
}

type trouble struct {
	mu   sync.Mutex
	last error
}

func (t *trouble) observe(e consumer.Event) (halted bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch e := e.(type) {
	case consumer.Halted:
		t.last = e.Err
		return true
	case consumer.Retried:
		t.last = e.Err
	case consumer.InDoubt:
		t.last = e.Err
	}
	return false
}

func (g *Group) isApplied() bool {
	g.broker.mu.Lock()
	defer g.broker.mu.Unlock()
	return g.applied()
}
