package show

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"
)

// Incident is one freeze or kill of a schedule.
type Incident struct {
	After  float64 // the fraction of the load that is done when it begins
	Worker int     // the victim: the n-th worker ever started, or the next one that holds a partition
	Kill   bool    // SIGKILL; otherwise SIGSTOP
	At     Point   // where it strikes
}

// NewSchedule draws n incidents from seed, alternating freezes and kills, for a crew that starts
// with so many workers. Each kind goes through its points in turn.
func NewSchedule(seed uint64, n, workers int, freezes, kills []Point) []Incident {
	r := rand.New(rand.NewPCG(seed, 0x5ced))
	is := make([]Incident, n)
	for i := range is {
		points := freezes
		if i%2 == 1 {
			points = kills
		}
		is[i] = Incident{
			After: (float64(i) + 0.4 + 0.3*r.Float64()) / float64(n+1),
			// A killed worker has been replaced by the next number.
			Worker: i/2 + 1 + r.IntN(workers),
			Kill:   i%2 == 1,
			At:     points[i/2%len(points)],
		}
	}
	return is
}

// Play plays the incidents one after the other, each once its share of total messages is done, and
// releases the messages that pace holds back for it. It calls say with a line for each.
func (c *Crew) Play(ctx context.Context, is []Incident, total int, pace *Pace, l Limits, say func(string)) error {
	for i, in := range is {
		due := int(in.After * float64(total))
		for done := -1; ; {
			err := c.await(ctx, l.Strike, func() bool {
				before := done
				done = c.progress()
				return done >= due || before >= 0 && done > before
			})
			if err != nil && !errors.Is(err, errTimeout) {
				return err
			}
			if done >= due || err != nil && pace.Sent() >= due { // strike even if a backlog does not move
				break
			}
		}
		var (
			line string
			err  error
		)
		if in.Kill {
			line, err = c.Kill(ctx, in.Worker, in.At, pace.Release, l)
		} else {
			line, err = c.Freeze(ctx, in.Worker, in.At, pace.Release, l)
		}
		if err != nil {
			return fmt.Errorf("incident %d of %d: %w", i+1, len(is), err)
		}
		say(line)
	}
	return nil
}

// Count returns the number of incidents for a load of that duration: one for each period of length
// every, and at least a freeze and a kill.
func Count(load, every time.Duration) int {
	return max(2, int(load/every))
}
