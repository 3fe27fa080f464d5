package schedule

import (
	"context"
	"fmt"
	"iter"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/internal/leased"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/form"
	"github.com/epochfence/epochfence/lease"
	"github.com/epochfence/epochfence/operate"
)

// This file has what package consumer sees of a job. consumer/internal/leased ends a tenure with
// its lease.

// tenure is this process's time with one job, under one lease.
type tenure struct {
	*leased.Tenure
	plan   plan
	course *course
	now    func() time.Time
	look   time.Duration
	log    *slog.Logger

	clock    *storeClock
	base     context.Context
	replaced atomic.Pointer[epoch.ClaimID] // the claim in the fence that was confirmed last
	kept     atomic.Bool                   // although the clock is wrong: nobody else has taken the job
}

var (
	_ consumer.Tenure         = (*tenure)(nil)
	_ consumer.StartDescriber = (*tenure)(nil)
)

func (s *Schedule[TX]) newTenure(base context.Context, l *lease.Held, term time.Duration) *tenure {
	j := s.jobs[l.Name]
	origin := epoch.Origin{
		Partition: epoch.Partition{Group: s.Group, Topic: l.Name, Number: l.Number},
		Log:       operate.JobLog,
		Source:    lease.FenceLog, // also of a store that was emptied: epochs continue
	}
	return &tenure{
		Tenure: leased.New(base, l, origin, term), plan: j.plan, course: j.course,
		now:  func() time.Time { return s.now().Round(0) }, // the wall clock alone
		look: s.look, log: s.Logger.With("job", l.Name), clock: &s.clock, base: base,
	}
}

// Starts implements [consumer.Tenure]. A job has no ticks before its fence.
func (t *tenure) Starts(context.Context, consumer.StartPolicy) ([]epoch.Start, error) {
	if err := t.Err(); err != nil {
		return nil, fmt.Errorf("schedule: start %s: %w", t.Origin().Partition, err)
	}
	begin := epoch.Position{Offset: place{at: t.now()}.after().offset(), Mark: epoch.NoMark}
	return []epoch.Start{{Origin: t.Origin(), Next: begin, Earliest: begin}}, nil
}

// DescribeStart implements [consumer.StartDescriber].
func (t *tenure) DescribeStart(first epoch.Fence) string {
	begin := placeOf(first.Next).at
	text := "with its ticks from " + begin.Format(time.RFC3339) + " on"
	if tick := t.plan.from(begin); !tick.IsZero() {
		text += "; the first is due at " + tick.Add(t.plan.delay).In(t.plan.where).Format(time.RFC3339)
	}
	return text
}

// DescribeOffset returns the time of the tick, for log lines.
func (t *tenure) DescribeOffset(o epoch.Offset) string {
	p := placeOf(o)
	text := p.at.In(t.plan.where).Format(time.RFC3339)
	if p.step > 0 {
		text += fmt.Sprintf(", step %d", p.step)
	}
	return text
}

// Committed implements [consumer.Tenure]. Nobody else has positions of jobs.
func (t *tenure) Committed(context.Context) (epoch.Position, bool, error) {
	if err := t.Err(); err != nil {
		return epoch.Position{}, false, fmt.Errorf("schedule: committed position of %s: %w", t.Origin().Partition, err)
	}
	return epoch.Position{}, false, nil
}

// Confirm implements [consumer.Tenure].
func (t *tenure) Confirm(ctx context.Context, seen epoch.Fence) (epoch.Lease, error) {
	confirmed, err := t.Tenure.Confirm(ctx, &seen)
	if wrong := t.clock.check(ctx); err == nil && wrong != nil {
		if t.clock.gives(t.Name, seen.Epoch) {
			err = t.give(wrong)
		} else {
			t.kept.Store(true)
		}
	}
	if err != nil {
		return epoch.Lease{}, fmt.Errorf("schedule: confirm %s: %w", t.Origin().Partition, err)
	}
	t.replaced.Store(&seen.Claim)
	return confirmed, nil
}

// give leaves the job to other processes.
func (t *tenure) give(wrong error) error {
	t.GiveUp(t.clock.spared(t.base))
	t.Lose(wrong)
	return t.Err()
}

// Mirror implements [consumer.Tenure]. No tool reads positions of jobs elsewhere than in the sink.
func (t *tenure) Mirror(epoch.Fence) {}

// Lag implements [consumer.Tenure].
func (t *tenure) Lag(_ context.Context, from epoch.Fence) (int64, error) {
	if err := t.Fits(&from); err != nil {
		return 0, fmt.Errorf("schedule: lag of %s: %w", t.Origin().Partition, err)
	}
	if from.Mark != epoch.NoMark {
		return 1, nil
	}
	if d := t.plan.decide(positionOf(from.Next, from.Mark).at, t.now(), span{}); !d.run.IsZero() {
		return int64(1 + d.behind), nil
	}
	return 0, nil
}

// Read implements [consumer.Tenure]. It relies on [consumer.Run], which asks for the next batch when
// the last one was applied.
func (t *tenure) Read(ctx context.Context, from epoch.Fence) iter.Seq2[consumer.Batch, error] {
	return t.State.Read(ctx, func(ctx context.Context, yield func(consumer.Batch) bool) error {
		if err := t.Fits(&from); err != nil {
			return fmt.Errorf("schedule: read: %w", err)
		}
		if from.Mark > between {
			return fmt.Errorf("schedule: read: the mark %d of the position: %w: %w", from.Mark, consumer.ErrBlocked, form.ErrNewer)
		}
		r := reader{tenure: t, yield: yield, at: positionOf(from.Next, from.Mark), mark: from.Mark, setUnder: from.SetUnder, claim: from.Claim}
		return r.read(ctx)
	})
}
