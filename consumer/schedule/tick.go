package schedule

import (
	"strconv"
	"time"

	"github.com/epochfence/epochfence/epoch"
)

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

	// Requested reports that an operator has requested the run: see [Request].
	Requested bool

	// Missed is the number of late ticks that were left out for this one, up to 10,000.
	Missed int

	// Message is the tick as a message, for package guard and the outbox.
	Message epoch.Message
}

// OffsetOf returns the position at which all ticks before a time are done.
func OffsetOf(at time.Time) epoch.Offset { return place{at: at}.offset() }

// TimeOf is the inverse of [OffsetOf]. step is the number of committed steps of the tick at that time.
func TimeOf(position epoch.Offset) (at time.Time, step int) {
	p := placeOf(position)
	return p.at, p.step
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
	return place{time.Unix(int64(o/epoch.ScheduleSecond), 0).UTC(), int(o % epoch.ScheduleSecond)}
}

func (p place) offset() epoch.Offset {
	return epoch.Offset(p.at.Unix())*epoch.ScheduleSecond + epoch.Offset(p.step)
}

// after returns the place after all steps of the tick.
func (p place) after() place { return place{at: p.at.Add(time.Second)} }

// Marks of positions. Others have none: operators set no position between two steps.
const (
	requested epoch.Mark = 1 // an operator has requested a run at the position, which may have begun
	between   epoch.Mark = 2 // steps of the tick are done, and others are not
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
