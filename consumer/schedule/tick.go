package schedule

import (
	"strconv"
	"time"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/operate"
)

// This file decides how times and steps are written as offsets and marks.

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
