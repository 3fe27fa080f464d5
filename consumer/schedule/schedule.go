package schedule

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/internal/leased"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/form"
	"github.com/epochfence/epochfence/internal/waits"
	"github.com/epochfence/epochfence/lease"
	"github.com/epochfence/epochfence/operate"
)

// This file has the source and the handlers of the jobs, and what package consumer sees of a job. Package
// lease decides which process has which job, and consumer/internal/leased ends a tenure with its lease.

// Schedule is the jobs of one process: a [consumer.Source] and the handlers for it. Make one with [New].
// A Schedule serves one Run.
type Schedule[TX any] struct {
	Options
	jobs      map[string]*job[TX]
	resources map[string]int32 // to lease: one of each job
	started   atomic.Bool

	clock      storeClock
	membership leased.Membership

	now  func() time.Time
	look time.Duration // how often the clock is looked at, at least
}

type job[TX any] struct {
	Job[TX]
	plan   plan
	course *course
}

var (
	_ consumer.Source   = (*Schedule[any])(nil)
	_ consumer.Rejoiner = (*Schedule[any])(nil)
)

// New checks the options and the jobs. It does not use the store yet.
func New[TX any](o Options, jobs ...Job[TX]) (*Schedule[TX], error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	if len(jobs) == 0 {
		return nil, errors.New("schedule: there are no jobs")
	}
	s := &Schedule[TX]{Options: o, jobs: map[string]*job[TX]{}, resources: map[string]int32{}, now: time.Now, look: lookAgain}
	for _, j := range jobs {
		p, err := j.plan(o.Group)
		if err != nil {
			return nil, err
		}
		if s.jobs[j.Name] != nil {
			return nil, fmt.Errorf("schedule: two jobs have the name %q", j.Name)
		}
		s.jobs[j.Name] = &job[TX]{Job: j, plan: p, course: &course{}}
		s.resources[j.Name] = 1
	}
	return s, nil
}

// Identity implements [consumer.Source].
func (s *Schedule[TX]) Identity() (group, name string) { return s.Group, s.identity() }

// Member implements [consumer.Remover].
func (s *Schedule[TX]) Member() (id string, session time.Duration, static bool) {
	return s.membership.Member()
}

// RejoinWhen implements [consumer.Rejoiner].
func (s *Schedule[TX]) RejoinWhen(ready func(context.Context) error) { s.membership.Ready = ready }

// Remove implements [consumer.Remover].
func (s *Schedule[TX]) Remove(ctx context.Context, member, reason string) error {
	if err := s.membership.Remove(ctx, member, reason); err != nil {
		return fmt.Errorf("schedule: remove a member: %w", err)
	}
	return nil
}

// Run implements [consumer.Source]. It returns an error if the store was not reached within
// StartTimeout, or is not suitable for leases.
func (s *Schedule[TX]) Run(ctx context.Context, joined func(error), own func(context.Context, consumer.Tenure)) error {
	if s.started.Swap(true) {
		return errors.New("schedule: Run was called before; make a new Schedule")
	}
	base, end := context.WithCancel(context.WithoutCancel(ctx)) // until everything was given back
	defer func() { end(); s.clock.spares.Wait() }()
	s.clock = storeClock{now: func() time.Time { return s.now().Round(0) }, joined: joined, given: map[string]epoch.Epoch{}}
	s.clock.store, _ = s.Store.(cas.Clock)
	m, err := s.join(ctx)
	if err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	defer m.Close()
	s.membership.Join(m)
	err = m.Run(ctx, func(l *lease.Held) {
		t := s.newTenure(base, l, m.Term())
		t.Hold(base, func(ctx context.Context) { own(ctx, t) }, nil)
	})
	if err != nil {
		return fmt.Errorf("schedule: %w", err)
	}
	return nil
}

func (s *Schedule[TX]) join(ctx context.Context) (m *lease.Member, err error) {
	server := waits.Server{Name: "the store of the leases", Timeout: s.StartTimeout, Log: s.Logger, Patience: s.patience}
	_, err = server.Wait(ctx, func(ctx context.Context) error {
		m, err = lease.Open(ctx, s.Store, lease.Options{
			Group: s.Group, Resources: s.resources, TTL: s.LeaseTTL, Name: s.Name, Logger: s.Logger,
			MaxStall: -1, // package consumer gives up what hangs
			Ready:    s.membership.Ready,
			Joined:   func(err error) { s.clock.report(leased.ReasonOf(err)) },
		})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("schedule: %w", err)
	}
	return m, nil
}

func (s *Schedule[TX]) patience(err error) time.Duration {
	for _, lasting := range []error{cas.ErrUnsuitable, cas.ErrKey, cas.ErrTooLarge, cas.ErrFull} {
		if errors.Is(err, lasting) {
			return 0
		}
	}
	return s.StartTimeout
}

// Handlers returns the handlers of the jobs, for [consumer.Run].
func (s *Schedule[TX]) Handlers() consumer.Handlers[TX] { return consumer.Each(s.handle) }

func (s *Schedule[TX]) handle(ctx context.Context, tx TX, m consumer.Message, e epoch.Epoch) error {
	if err := s.run(ctx, tx, m, e); err != nil {
		return fmt.Errorf("tick %s: %w", operate.FormatOffset(operate.JobLog, m.Offset), err)
	}
	return nil
}

func (s *Schedule[TX]) run(ctx context.Context, tx TX, m consumer.Message, e epoch.Epoch) error {
	j, t := s.jobs[m.Partition.Topic], TickOf(m)
	t.At = t.At.In(j.plan.where)
	if j.Do != nil {
		return j.Do(ctx, tx, t, e)
	}
	if m.Replay != 0 { // beside the steps of the present tick
		_, err := j.Step(ctx, tx, t, e)
		return err
	}
	j.course.returned(m.Offset, true, m.Under.Claim) // unless it returns that there is more: if OnFailure takes the step, the run is over
	done, err := j.Step(ctx, tx, t, e)
	if err == nil && !done {
		j.course.returned(m.Offset, false, m.Under.Claim)
	}
	return err
}

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
