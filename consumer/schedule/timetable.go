package schedule

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/netresearch/go-cron"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/operate"
)

// This file decides at which times a cron expression has ticks, and how times and steps are written as
// offsets and marks. Late ticks are due.go's.

// timetable has the times of a job's ticks, in whole seconds.
type timetable interface {
	// next returns the first tick after t, or the zero time if there is none in 100 years.
	next(t time.Time) time.Time
}

var parser = cron.MustNewParser(cron.SecondOptional | cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow | cron.DowOrDom | cron.Descriptor).
	WithMaxSearchYears(mostYears)

// mostYears is how far ahead a tick is looked for.
const mostYears = 100

func parse(expression string, where *time.Location) (timetable, error) {
	if period, ok := strings.CutPrefix(expression, "@every "); ok {
		d, err := time.ParseDuration(period)
		if err != nil || d < time.Second || d%time.Second != 0 {
			return nil, fmt.Errorf("its Cron %q: want a duration in whole seconds, such as \"@every 90s\"", expression)
		}
		return every(d / time.Second), nil
	}
	s, err := parser.Parse(expression)
	if err != nil {
		return nil, fmt.Errorf("its Cron %q: %w", expression, err)
	}
	spec, ok := s.(*cron.SpecSchedule)
	if !ok || spec.Location != time.Local {
		return nil, fmt.Errorf("its Cron %q: want five or six fields, and the time zone in Zone", expression)
	}
	spec.Location = time.UTC
	c := calendar{spec, where}
	if spec.Hour&anyHour != 0 {
		return elapsed{c}, nil
	}
	return daily{c}, nil
}

// every is a number of seconds. Its ticks are multiples since 1970, so that all processes agree.
type every int64

func (e every) next(t time.Time) time.Time {
	n := t.Unix()/int64(e) + 1
	return time.Unix(n*int64(e), 0).UTC()
}

// anyHour is the bit of an hour that is *.
const anyHour = 1 << 63

// calendar has the times that clocks show, written as if they were UTC.
type calendar struct {
	wall  *cron.SpecSchedule
	where *time.Location
}

func (c calendar) offset(t time.Time) time.Duration {
	_, seconds := t.In(c.where).Zone()
	return time.Duration(seconds) * time.Second
}

// elapsed is a Cron for any hour. It continues through an hour that clocks show twice.
type elapsed struct{ calendar }

func (e elapsed) next(t time.Time) time.Time {
	offset := e.offset(t)
	for range 2 * mostYears {
		_, end := t.In(e.where).ZoneBounds()
		shown := e.wall.Next(t.UTC().Add(offset))
		if shown.IsZero() {
			return shown
		}
		if next := shown.Add(-offset); end.IsZero() || next.Before(end) {
			return next
		}
		t, offset = end.Add(-time.Nanosecond), e.offset(end)
		if next := e.wall.Next(t.UTC().Add(offset)).Add(-offset); next.Equal(end) {
			return end.UTC()
		}
		t = end
	}
	return time.Time{}
}

// daily is a Cron for some hours of a day.
type daily struct{ calendar }

// mostShift is more than clocks are ever set forward or back.
const mostShift = 3 * time.Hour

func (d daily) next(t time.Time) time.Time {
	offset := d.offset(t)
	shown := d.wall.Next(t.UTC().Add(offset))
	if shown.IsZero() {
		return shown
	}
	if next := shown.Add(-offset); d.offset(next) == offset && d.offset(t.Add(-mostShift)) == offset {
		return next
	}
	// Clocks are set in between or were just set: times that do not exist come later than others.
	var first time.Time
	for shown := d.wall.Next(t.UTC().Add(offset - mostShift)); !shown.IsZero(); shown = d.wall.Next(shown) {
		next := d.at(shown)
		if !first.IsZero() && next.After(first.Add(2*mostShift)) {
			break
		}
		if next.After(t) && (first.IsZero() || next.Before(first)) {
			first = next
		}
	}
	return first
}

// at returns when clocks show a time: the first time that they do. A time that they leave out is counted
// from before they were set.
func (d daily) at(shown time.Time) time.Time {
	const furthest = 15 * time.Hour // from UTC
	before := d.offset(shown.Add(-furthest))
	at := shown.Add(-before)
	if d.offset(at) != before {
		after := d.offset(shown.Add(furthest))
		if later := shown.Add(-after); d.offset(later) == after {
			return later
		}
	}
	return at
}

// Tick is one time of a job.
type Tick struct {
	// Job is the job's name.
	Job string

	// At is the scheduled time in the job's Zone, without Jitter, also if the tick is late. From [TickOf]
	// it is in UTC. At of a requested run is the job's position: the time up to which ticks were done.
	At time.Time

	// Step is the number of steps of this tick that were committed before. It is 0 for Do, unless the
	// job had a Step until then.
	Step int

	// Requested reports that an operator has requested the run: see [operate.NewRun].
	Requested bool

	// Missed is the number of late ticks that were left out for this one, up to 10,000.
	Missed int

	// Message is the tick as a message, for package guard and the outbox.
	Message epoch.Message
}

// TickOf returns the tick of a message, for instance in [consumer.Handlers.OnFailure].
func TickOf(m epoch.Message) Tick {
	p := placeOf(m.Offset)
	t := Tick{Job: m.Partition.Topic, At: p.at, Step: p.step, Message: m}
	for _, h := range m.Headers {
		switch h.Key {
		case headerRequested:
			t.Requested = true
		case headerMissed:
			t.Missed, _ = strconv.Atoi(string(h.Value))
		}
	}
	return t
}

// The headers of a tick's message.
const (
	headerMissed    = "epochfence-missed"
	headerRequested = "epochfence-requested"
)

// place is a position of a job: the ticks before at are done, and of the one at that time, step steps.
type place struct {
	at   time.Time // in whole seconds
	step int
}

func placeOf(o epoch.Offset) place {
	at, step := operate.JobTime(o)
	return place{at, step}
}

func (p place) offset() epoch.Offset {
	return operate.JobOffset(p.at) + epoch.Offset(p.step)
}

// after returns the place after all steps of the tick.
func (p place) after() place { return place{at: p.at.Add(time.Second)} }

// Marks of positions. Others have none: operators set no position between two steps.
const (
	requested            = operate.RunRequested // the run may have begun
	between   epoch.Mark = 2                    // steps of the tick are done, and others are not
)

// positionOf returns where a job continues. A position that is no whole second and has no mark is rounded
// up: an operator has left the tick there out, or the rest of its run.
func positionOf(o epoch.Offset, mark epoch.Mark) place {
	p := placeOf(o)
	if p.step > 0 && mark == epoch.NoMark {
		return p.after()
	}
	return p
}
