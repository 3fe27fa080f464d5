package schedule

import (
	"context"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/epochfence/epochfence/epoch"
)

func nothing(context.Context, int, Tick, epoch.Epoch) error        { return nil }
func noStep(context.Context, int, Tick, epoch.Epoch) (bool, error) { return true, nil }

func clock(t interface{ Fatal(...any) }, s string) time.Time {
	if s == "" {
		return time.Time{}
	}
	at, err := time.Parse("02 15:04:05", s)
	if err != nil {
		t.Fatal(err)
	}
	return at.AddDate(2000, 0, 0)
}

func TestWhatFollowsAtAPosition(t *testing.T) {
	t.Parallel()
	hourly := Job[int]{Cron: "@hourly"}
	all, queued, late, delayed := hourly, hourly, hourly, hourly
	all.CatchUp = CatchUpAll
	queued.CatchUp, queued.Overrun = CatchUpAll, OverrunQueue
	late.MaxLate = 90 * time.Minute
	lateAll := late
	lateAll.CatchUp = CatchUpAll
	lastQueued := hourly
	lastQueued.Overrun = OverrunQueue
	for name, c := range map[string]struct {
		job                Job[int]
		at, now, from, to  string // from and to: when the job was busy
		run, skipTo, until string
		missed, idle       int // idle: of the missed ones, while the job was not busy
		behind, delays     int
	}{
		"the time has not come":       {job: hourly, at: "01 00:30:00", now: "01 00:59:59", until: "01 01:00:00"},
		"it has":                      {job: hourly, at: "01 00:30:00", now: "01 01:00:00", run: "01 01:00:00"},
		"at the position itself":      {job: hourly, at: "01 01:00:00", now: "01 01:00:00", run: "01 01:00:00"},
		"it was run before":           {job: hourly, at: "01 01:00:01", now: "01 01:00:01", until: "01 02:00:00"},
		"three were missed: the last": {job: hourly, at: "01 01:00:00", now: "01 03:30:00", run: "01 03:00:00", missed: 2, idle: 2},
		"three were missed: all":      {job: all, at: "01 01:00:00", now: "01 03:30:00", run: "01 01:00:00", behind: 2},
		"too late":                    {job: late, at: "01 01:00:00", now: "01 02:45:00", run: "01 02:00:00", missed: 1, idle: 1},
		"all are too late":            {job: late, at: "01 01:00:00", now: "01 01:00:00", run: "01 01:00:00"},
		"all that are not too late":   {job: lateAll, at: "01 01:00:00", now: "01 04:00:00", run: "01 03:00:00", missed: 2, idle: 2, behind: 1},
		"one came while it worked":    {job: hourly, at: "01 01:00:01", now: "01 02:10:00", from: "01 01:00:00", to: "01 02:10:00", skipTo: "01 02:10:01", missed: 1},
		"and one since":               {job: hourly, at: "01 01:00:01", now: "01 03:10:00", from: "01 01:00:00", to: "01 02:10:00", run: "01 03:00:00", missed: 1},
		"suspended while it worked":   {job: hourly, at: "01 01:00:01", now: "01 11:30:00", from: "01 00:59:00", to: "01 02:10:00", run: "01 11:00:00", missed: 9, idle: 8},
		"one before, and one while":   {job: all, at: "01 01:00:00", now: "01 03:10:00", from: "01 02:30:00", to: "01 03:10:00", run: "01 01:00:00", behind: 2},
		"of all, those while it was":  {job: all, at: "01 02:30:00", now: "01 03:10:00", from: "01 02:30:00", to: "01 03:10:00", skipTo: "01 03:10:01", missed: 1},
		"those queue":                 {job: queued, at: "01 02:30:00", now: "01 03:10:00", from: "01 02:30:00", to: "01 03:10:00", run: "01 03:00:00"},
		"those queue, and the last":   {job: lastQueued, at: "01 01:00:01", now: "01 03:10:00", from: "01 01:00:00", to: "01 03:10:00", run: "01 03:00:00", missed: 1, idle: 1},
		"a delay":                     {job: delayed, delays: 600, at: "01 00:30:00", now: "01 01:05:00", until: "01 01:10:00"},
		"a delay that is over":        {job: delayed, delays: 600, at: "01 00:30:00", now: "01 01:10:00", run: "01 01:00:00"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c.job.Name, c.job.Do = "job", nothing
			p, err := c.job.plan("group")
			if err != nil {
				t.Fatal(err)
			}
			p.delay = time.Duration(c.delays) * time.Second
			want := decision{run: clock(t, c.run), skipTo: clock(t, c.skipTo), until: clock(t, c.until), missed: c.missed, late: c.idle, behind: c.behind}
			if got := p.decide(clock(t, c.at), clock(t, c.now), span{clock(t, c.from), clock(t, c.to)}); got != want {
				t.Errorf("got  %+v\nwant %+v", got, want)
			}
		})
	}
}

// Whatever the policy, each tick is run once or counted as left out once, in order.
func TestEachTickIsRunOnceOrCountedAsLeftOut(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		j := Job[int]{
			Name: "job", Do: nothing,
			Cron:    rapid.SampledFrom([]string{"@every 1s", "@every 7s", "*/5 * * * *", "@hourly", "17 3 * * *"}).Draw(t, "cron"),
			CatchUp: CatchUp(rapid.IntRange(0, 1).Draw(t, "catch up")),
			Overrun: Overrun(rapid.IntRange(0, 1).Draw(t, "overrun")),
			MaxLate: time.Duration(rapid.IntRange(0, 200).Draw(t, "late")) * time.Minute,
			Jitter:  time.Duration(rapid.IntRange(0, 3).Draw(t, "jitter")) * time.Minute,
		}
		p, err := j.plan("group")
		if err != nil {
			t.Fatal(err)
		}
		begin := clock(t, "01 00:00:00")
		at, now, busy := begin, begin, span{}
		ran, missed := 0, 0
		for range rapid.IntRange(1, 60).Draw(t, "turns") {
			d := p.decide(at, now, busy)
			switch {
			case !d.run.IsZero():
				if d.run.Before(at) || d.run.Add(p.delay).After(now) {
					t.Fatalf("at %v, %v: %+v", at, now, d)
				}
				ran++
				missed += d.missed
				at = d.run.Add(time.Second)
				if busy.from.IsZero() {
					busy.from = now
				}
				now = now.Add(time.Duration(rapid.IntRange(0, 5000).Draw(t, "work")) * time.Second)
				busy.to = now
			case !d.skipTo.IsZero():
				if !d.skipTo.After(at) || d.missed == 0 {
					t.Fatalf("at %v, %v: %+v", at, now, d)
				}
				missed += d.missed
				at = d.skipTo
			default:
				busy = span{}
				if d.until.Before(now) {
					t.Fatalf("at %v, %v: %+v", at, now, d)
				}
				now = d.until.Add(time.Duration(rapid.IntRange(0, 3000).Draw(t, "away")) * time.Second)
			}
		}
		if all := p.count(begin, at); ran+missed != all && all < mostMissed {
			t.Fatalf("%d ticks up to %v: %d were run and %d left out", all, at, ran, missed)
		}
		if j.CatchUp == CatchUpAll && j.Overrun == OverrunQueue && j.MaxLate == 0 && missed > 0 {
			t.Fatalf("%d are left out", missed)
		}
	})
}
