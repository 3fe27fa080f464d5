package schedule

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/backoff"
)

// reader yields the ticks of one job from a position on.
type reader struct {
	*tenure
	yield func(consumer.Batch) bool
	at    place
	mark  epoch.Mark
	epoch epoch.Epoch // of the claim
	busy  span        // the last time at work
}

const (
	// mostAhead is how far the position may be ahead of the clock.
	mostAhead = 24 * time.Hour

	// lookAgain limits a sleep, because the wall clock may be set, and stands still while a machine is suspended.
	lookAgain = 15 * time.Second
)

func (r *reader) read(ctx context.Context) error {
	if ahead := r.at.at.Sub(r.now()); ahead > mostAhead {
		return &consumer.PositionError{
			Partition: r.Origin().Partition, Kind: consumer.ErrTruncated, Position: r.at.offset(), Found: place{at: r.now()}.offset(),
		}
	}
	if r.at.step > 0 && r.course.isOver(r.at.offset()-1, r.epoch) && !r.move(r.at.after()) {
		return nil
	}
	for ctx.Err() == nil {
		if more, err := r.next(ctx); err != nil || !more {
			return err
		}
	}
	return nil
}

// next runs a tick, or moves the position without one, or waits.
func (r *reader) next(ctx context.Context) (more bool, err error) {
	if r.at.step > 0 || r.mark == requested {
		return r.run(decision{})
	}
	d := r.plan.decide(r.at.at, r.now(), r.busy)
	switch {
	case !d.run.IsZero():
		r.say(d)
		r.at = place{at: d.run}
		return r.run(d)
	case !d.skipTo.IsZero():
		r.say(d)
		return r.move(place{at: d.skipTo}), nil
	}
	r.busy = span{}
	wait := r.look
	if !d.until.IsZero() {
		wait = min(wait, d.until.Sub(r.now()))
	}
	return backoff.Sleep(ctx, max(wait, time.Millisecond)), nil
}

// say logs the ticks that are left out. Those that came while the job was at work are usual.
func (r *reader) say(d decision) {
	switch {
	case d.missed == 0:
	case !r.busy.from.IsZero():
		r.log.Debug("the job was at work, so ticks are left out", "ticks", d.missed, "first_after", r.at.at)
	default:
		r.log.Warn("ticks were not run in time and are left out", "ticks", d.missed, "first_after", r.at.at, "runs", d.run)
	}
}

// move yields a position without a message.
func (r *reader) move(to place) bool {
	if !r.yield(consumer.Batch{Next: to.offset(), Mark: epoch.NoMark}) {
		return false
	}
	r.at, r.mark = to, epoch.NoMark
	return true
}

// run yields the steps of a tick. Each batch was applied when yield returns.
func (r *reader) run(d decision) (more bool, err error) {
	if r.busy.from.IsZero() {
		r.busy.from = r.now()
	}
	for {
		worked := r.course.begins(r.at)
		switch {
		case r.plan.maxRun > 0 && worked > r.plan.maxRun:
			return false, r.wrong("it has run for longer than MaxRun, %v", r.plan.maxRun)
		case int64(r.at.step) == stepsPerTick-1:
			return false, r.wrong("it has had %d steps, and a tick has no more", r.at.step)
		}
		m, next := r.message(d.missed), consumer.Batch{Next: r.at.after().offset(), Mark: epoch.NoMark}
		if r.plan.steps {
			next.Next, next.Mark = m.Offset+1, r.mark
		} else {
			next.End = next.Next + epoch.Offset(d.behind)
		}
		m.Mark = next.Mark
		next.Messages = []consumer.Message{m}
		if !r.yield(next) {
			return false, nil
		}
		r.at, r.mark = placeOf(next.Next), next.Mark
		r.busy.to = r.now()
		if !r.plan.steps {
			return true, nil
		}
		if r.course.isOver(m.Offset, r.epoch) {
			return r.move(r.at.after()), nil
		}
	}
}

func (r *reader) wrong(format string, args ...any) error {
	return fmt.Errorf("schedule: %s, the run of %s: %s; to leave its other steps out, skip to offset %d",
		r.Origin().Partition, r.at.at.Format(time.RFC3339), fmt.Sprintf(format, args...), r.at.after().offset())
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
