package schedule

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"time"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/waits"
	"github.com/epochfence/epochfence/operate"
)

// This file makes messages of ticks, steps and requested runs, and decides whether this process may run
// jobs by its clock. It leaves jobs that nobody else takes. due.go decides which tick comes next. Package
// consumer runs the transactions.

// ErrAhead is returned when the position of a job is more than a day ahead of this process's clock. It
// matches [consumer.ErrBlocked].
var ErrAhead = fmt.Errorf("the position is far ahead of the clock: %w", consumer.ErrBlocked)

// reader yields the ticks of one job from a position on.
type reader struct {
	*tenure
	yield    func(consumer.Batch) bool
	at       place
	mark     epoch.Mark
	setUnder epoch.Epoch
	claim    epoch.ClaimID

	busy      span // the last time at work
	began     time.Time
	saidAhead bool
}

const (
	// mostAhead is how far the position may be ahead of the clock.
	mostAhead = 24 * time.Hour

	// usualAhead is how far it may be without a line in the log.
	usualAhead = time.Minute

	// lookAgain limits a sleep, because the wall clock may be set, and stands still while a machine is
	// suspended.
	lookAgain = 15 * time.Second
)

func (r *reader) read(ctx context.Context) error {
	if r.at.step > 0 && r.isOver(r.at.offset()-1) && !r.move(r.at.after()) {
		return nil
	}
	for ctx.Err() == nil {
		if more, err := r.next(ctx); err != nil || !more {
			return err
		}
	}
	return nil
}

// isOver reports whether the step was the last one of its run, if it was committed under our claim or
// the one before.
func (r *reader) isOver(step epoch.Offset) bool {
	claims := []epoch.ClaimID{r.claim}
	if before := r.replaced.Load(); before != nil {
		claims = append(claims, *before)
	}
	return r.course.isOver(step, claims...)
}

// next runs a tick, or moves the position without one, or waits.
func (r *reader) next(ctx context.Context) (more bool, err error) {
	if wrong := r.clock.check(ctx); wrong != nil && !r.kept.Load() && r.mark == epoch.NoMark {
		return false, r.give(wrong)
	}
	if err := r.checkClock(); err != nil {
		return false, err
	}
	if r.mark != epoch.NoMark {
		return r.run(decision{})
	}
	d := r.plan.decide(r.at.at, r.now(), r.busy)
	switch {
	case !d.run.IsZero():
		r.say(d)
		r.at = place{at: d.run}
		d.after = r.now().Sub(d.run.Add(r.plan.delay))
		return r.run(d)
	case !d.skipTo.IsZero():
		r.say(d)
		return r.skip(place{at: d.skipTo}, d.late), nil
	}
	r.busy = span{}
	wait := r.look
	if !d.until.IsZero() {
		wait = min(wait, d.until.Sub(r.now()))
	}
	return waits.Sleep(ctx, max(wait, time.Millisecond)), nil
}

func (r *reader) checkClock() error {
	now := r.now()
	ahead := r.at.at.Sub(now)
	if ahead > mostAhead {
		return fmt.Errorf("schedule: %s: %w: ticks are done up to %s, and the clock of this process says %s; "+
			"if that is right, another clock was wrong: set the position with epochfence rewind %[1]s --to @TIME",
			r.Origin().Partition, ErrAhead, r.at.at.Format(time.RFC3339), now.Format(time.RFC3339))
	}
	if ahead > usualAhead && !r.saidAhead {
		r.saidAhead = true
		r.log.Warn("the position is ahead of this process's clock, and no tick runs before that time; a clock is or was wrong, or an operator has set the position", "position", r.at.at, "clock", now)
	}
	return nil
}

// say logs the ticks that are left out, once. Those that came while the job was at work are usual.
func (r *reader) say(d decision) {
	if d.missed == 0 || !r.course.isNews(r.at.at, d.run) {
		return
	}
	level, what := slog.LevelWarn, "ticks were not run in time, or failed, and are left out"
	if d.late == 0 {
		level, what = slog.LevelDebug, "the job was at work, so ticks are left out"
	}
	args := []any{"ticks", d.missed, "from", r.at.at}
	if !d.run.IsZero() {
		args = append(args, "runs", d.run)
	}
	r.log.Log(context.Background(), level, what, args...)
}

// move yields a position without a message.
func (r *reader) move(to place) bool { return r.skip(to, 0) }

// skip is move past missed ticks.
func (r *reader) skip(to place, missed int) bool {
	if !r.yield(consumer.Batch{Next: to.offset(), Mark: epoch.NoMark, Missed: missed}) {
		return false
	}
	r.at, r.mark = to, epoch.NoMark
	return true
}

// run yields the steps of a tick. Each batch was applied when yield returns.
func (r *reader) run(d decision) (more bool, err error) {
	if r.busy.from.IsZero() {
		r.busy.from, r.began = r.now(), time.Now()
	}
	for {
		worked := r.course.begins(r.at, r.setUnder)
		switch {
		case r.plan.maxRun > 0 && worked > r.plan.maxRun:
			return false, r.wrong("this process has worked on it for longer than MaxRun, %v", r.plan.maxRun)
		case epoch.Offset(r.at.step) < operate.JobSecond-1:
		case r.plan.endless():
			return r.move(r.at.after()), nil
		default:
			return false, r.wrong("it has had %d steps, and a tick has no more", r.at.step)
		}
		m, batch := r.step(d)
		began := time.Now()
		if !r.yield(batch) {
			return false, nil
		}
		d.late = 0 // once
		r.course.worked(time.Since(began))
		r.at, r.mark = placeOf(batch.Next), batch.Mark
		r.busy.to = r.busy.from.Add(time.Since(r.began)) // a wall clock that was set has nothing to do with it
		if !r.plan.steps {
			return true, nil
		}
		if r.isOver(m.Offset) {
			return r.move(r.at.after()), nil
		}
	}
}

// step returns the next step of a tick as a batch.
func (r *reader) step(d decision) (consumer.Message, consumer.Batch) {
	m, b := r.message(d.missed), consumer.Batch{Next: r.at.after().offset(), Mark: epoch.NoMark}
	b.End, b.Missed, b.Late = b.Next+epoch.Offset(d.behind), d.late, d.after
	if r.plan.steps {
		b.Next, b.Mark, b.End = m.Offset+1, between, 0
		if r.mark == requested {
			b.Mark = requested
		}
	}
	m.Mark = b.Mark
	b.Messages = []consumer.Message{m}
	return m, b
}

func (r *reader) wrong(format string, args ...any) error {
	return fmt.Errorf("schedule: %s, the run of %s: %s: %w; to leave the other steps out: epochfence skip %[1]s --through %[5]d",
		r.Origin().Partition, r.at.at.Format(time.RFC3339), fmt.Sprintf(format, args...), consumer.ErrBlocked, r.at.after().offset()-1)
}

func (r *reader) message(missed int) consumer.Message {
	m := consumer.Message{Partition: r.Origin().Partition, Offset: r.at.offset(), Key: []byte(r.plan.name), Time: r.at.at}
	if r.mark == requested {
		m.Headers = append(m.Headers, consumer.Header{Key: headerRequested, Value: []byte("true")})
	}
	if missed > 0 {
		m.Headers = append(m.Headers, consumer.Header{Key: headerMissed, Value: []byte(strconv.Itoa(missed))})
	}
	return m
}

// ErrClock is returned when the clock of this process and that of the store of the leases differ by more
// than a minute.
var ErrClock = errors.New("the clock of this process differs from that of the leases' store")

// storeClock compares this process's clock with the store's. A process whose clock is wrong gives its jobs to
// others, and says so as long as it lasts. It keeps a job that nobody else takes: the store's clock may
// be the wrong one.
type storeClock struct {
	now    func() time.Time
	store  cas.Clock
	joined func(error)

	notifying sync.Mutex // so that the consumer gets the newest state last
	spares    sync.WaitGroup

	mu    sync.Mutex
	left  error // why this process is no member of the group, as package lease says
	wrong error
	asked time.Time // when wrong was found out, or the zero time
	given map[string]epoch.Epoch
}

const (
	// mostSkew is the difference that is allowed beside the time that the answer took.
	mostSkew = time.Minute

	// spare is the time for which others can take a job that was given to them.
	spare = time.Minute
)

// report notifies the consumer whether this process is a member of the group, and in time.
func (c *storeClock) report(left error) {
	c.mu.Lock()
	c.left = left
	c.mu.Unlock()
	c.notify()
}

func (c *storeClock) notify() {
	c.notifying.Lock()
	defer c.notifying.Unlock()
	c.mu.Lock()
	cause := errors.Join(c.left, c.wrong)
	c.mu.Unlock()
	c.joined(cause)
}

// check asks the store for the time, unless it was asked within the last lookAgain. Where the store has
// no clock or does not answer, it returns what was found last.
func (c *storeClock) check(ctx context.Context) error {
	c.mu.Lock()
	wrong, asked := c.wrong, c.asked
	c.mu.Unlock()
	if c.store == nil || !asked.IsZero() && time.Since(asked) < lookAgain {
		return wrong
	}
	began := time.Now()
	theirs, err := c.store.Now(ctx)
	took := time.Since(began)
	if err != nil {
		return wrong
	}
	c.mu.Lock()
	wrong = compare(c.now(), theirs, took)
	changed := (wrong == nil) != (c.wrong == nil)
	c.wrong, c.asked = wrong, time.Now()
	c.mu.Unlock()
	if changed {
		c.notify()
	}
	return wrong
}

// compare returns an error if the clocks differ. The store's was read within took before ours.
func compare(ours, theirs time.Time, took time.Duration) error {
	ahead, what := ours.Sub(theirs), "ahead"
	switch {
	case ahead-took > mostSkew:
	case ahead < -mostSkew:
		ahead, what = -ahead, "behind"
	default:
		return nil
	}
	return fmt.Errorf("%w: it is %v %s; set the clocks by NTP: jobs run at the wrong time and ticks are left out", ErrClock, ahead.Round(time.Second), what)
}

// gives reports whether the job is to be given to others. It is not if it was given to them under the
// same epoch and nobody has taken it.
func (c *storeClock) gives(job string, seen epoch.Epoch) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if before, known := c.given[job]; known && before == seen {
		return false
	}
	c.given[job] = seen
	return true
}

// spared returns a channel that is closed when this process may have the job again.
func (c *storeClock) spared(ctx context.Context) <-chan struct{} {
	until := make(chan struct{})
	c.spares.Go(func() {
		defer close(until)
		for end := time.Now().Add(spare); time.Now().Before(end) && waits.Sleep(ctx, lookAgain); {
			if c.check(ctx) == nil {
				return
			}
		}
	})
	return until
}
