package schedule

import (
	"slices"
	"sync"
	"time"

	"github.com/epochfence/epochfence/epoch"
)

// This file decides which tick a job runs next, which ticks are left out, and how long to wait, and
// remembers how far the present run of a job has come in this process. It reads no clock and sends
// nothing: reader.go does, and decides which step is next.

// span is a time during which a job was at work.
type span struct{ from, to time.Time }

func (s span) has(t time.Time) bool { return t.After(s.from) && !t.After(s.to) }

// decision says what a job does next: run a tick, move its position without one, or wait.
type decision struct {
	run    time.Time // the tick to run, or zero
	skipTo time.Time // the new position, or zero
	until  time.Time // when to decide again if there is nothing else to do; zero if there is no tick any more
	missed int       // ticks before run or skipTo that are left out
	late   int       // of them, those that did not come while the job was at work
	behind int       // ticks to run after run, as of now

	after time.Duration // how long after its time run begins; the reader sets it
}

// mostMissed is up to where ticks are counted.
const mostMissed = 10_000

// decide returns what follows at a position, before which all ticks are done. busy is when the job was
// at work without a pause, until just now.
func (p plan) decide(at, now time.Time, busy span) decision {
	now = now.Add(-p.delay) // as if the ticks had no delay
	busy = span{busy.from.Add(-p.delay), busy.to.Add(-p.delay)}
	first := p.from(at)
	switch {
	case first.IsZero():
		return decision{}
	case first.After(now):
		return decision{until: first.Add(p.delay)}
	}
	begin := at
	if oldest := now.Add(-p.maxLate); p.maxLate > 0 && oldest.After(begin) {
		begin = oldest
	}
	if p.overrun == OverrunQueue {
		busy = span{}
	}
	run := p.choose(begin, now, busy)
	if run.IsZero() {
		skipTo := now.Truncate(time.Second).Add(time.Second)
		missed, late := p.leaves(at, skipTo, busy)
		return decision{skipTo: skipTo, missed: missed, late: late}
	}
	d := decision{run: run}
	d.missed, d.late = p.leaves(at, run, busy)
	if p.catchUp == CatchUpAll {
		d.behind = p.count(run.Add(time.Second), now.Add(time.Nanosecond))
	}
	return d
}

// leaves returns the number of ticks in [begin, end), and how many of them came while the job was idle.
func (p plan) leaves(begin, end time.Time, busy span) (all, idle int) {
	all = p.count(begin, end)
	if from := busy.from.Add(time.Nanosecond); from.After(begin) {
		begin = from
	}
	if to := busy.to.Add(time.Nanosecond); to.Before(end) {
		end = to
	}
	return all, all - p.count(begin, end)
}

// choose returns the tick to run, of those from begin to now that did not come while the job was busy.
func (p plan) choose(begin, now time.Time, busy span) time.Time {
	if p.catchUp == CatchUpAll {
		run := p.from(begin)
		if busy.has(run) {
			run = p.timetable.next(busy.to)
		}
		if run.After(now) {
			return time.Time{}
		}
		return run
	}
	run := p.last(begin, now)
	if busy.has(run) {
		run = p.last(begin, busy.from)
	}
	return run
}

// from returns the first tick that is not before t.
func (p plan) from(t time.Time) time.Time { return p.timetable.next(t.Add(-time.Nanosecond)) }

// last returns the last tick in [begin, end], or the zero time.
func (p plan) last(begin, end time.Time) time.Time {
	var last time.Time
	for back := time.Minute; last.IsZero(); back *= 4 {
		from := end.Add(-back)
		if !from.After(begin) {
			from = begin
		}
		for t := p.from(from); !t.IsZero() && !t.After(end); t = p.timetable.next(t) {
			last = t
		}
		if from.Equal(begin) {
			break
		}
	}
	return last
}

// count returns the number of ticks in [begin, end), up to mostMissed.
func (p plan) count(begin, end time.Time) int {
	n := 0
	for t := p.from(begin); n < mostMissed && !t.IsZero() && t.Before(end); t = p.timetable.next(t) {
		n++
	}
	return n
}

// course is what this process knows of the present run of a job, over all its tenures of the job. The
// handler writes the first part, and the reader the rest.
type course struct {
	mu   sync.Mutex
	step epoch.Offset  // of the last call
	last bool          // no step follows that one
	by   epoch.ClaimID // under which it was called

	run   place // of the run's last step that began
	under epoch.Epoch
	took  time.Duration // the work on the run's steps

	at, reported time.Time // the position and the tick for which it was said that others are left out
}

func (c *course) returned(step epoch.Offset, last bool, by epoch.ClaimID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.step, c.last, c.by = step, last, by
}

// isOver reports whether the step was the last one of its run, if it was committed under one of the
// claims. If it was, the call that this process remembers under that claim is the one that was committed.
func (c *course) isOver(step epoch.Offset, claims ...epoch.ClaimID) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Contains(claims, c.by) && c.step == step && c.last
}

// begins returns how long this process has worked on a run before a step. An operator who has set the
// position, under the given epoch, begins it anew.
func (c *course) begins(p place, under epoch.Epoch) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p.step == 0 || !p.at.Equal(c.run.at) || under != c.under {
		c.took = 0
	}
	c.run, c.under = p, under
	return c.took
}

func (c *course) worked(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.took += d
}

// isNews reports whether it was not said yet that ticks from a position on are left out for one.
func (c *course) isNews(at, run time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.at.Equal(at) && c.reported.Equal(run) {
		return false
	}
	c.at, c.reported = at, run
	return true
}
