package schedule

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"time"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/waits"
	"github.com/epochfence/epochfence/operate"
)

// This file makes messages of ticks, steps and requested runs. due.go decides which tick comes
// next. Package consumer runs the transactions.

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
