package schedule

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/text/process"
	"github.com/epochfence/epochfence/internal/waits"
)

// This file has the options of a schedule, with their defaults and limits, and what a user declares about
// a job, and refuses what makes no sense. due.go decides what follows from it.

// Job is something to do at the times of a cron expression. Exactly one of Do and Step is set. Both
// may be called again for a tick whose transaction was rolled back, and must return when ctx ends.
type Job[TX any] struct {
	// Name is the topic of the job's partition, whose number is 0. It is UTF-8 of up to 255 bytes.
	// Processes of one group may have different jobs. Required.
	Name string

	// Cron has five fields, as in crontab(5): minute, hour, day of the month, month of the year and day
	// of the week. A sixth field in front is the second. If both day fields are restricted, a day that
	// matches either one matches. Cron may also be @hourly, @daily, @weekly, @monthly or @yearly, or
	// "@every 90s", whose ticks are at multiples of that duration since 1970. [Always] is for work
	// without end. Required.
	Cron string

	// Zone is the time zone of Cron, such as "Europe/Berlin". A program on a machine without a time
	// zone database imports time/tzdata. Defaults to UTC.
	//
	// When clocks are set forward, a tick that does not exist is run after the gap. When they are set
	// back, a tick that exists twice is run the first time; a Cron whose hour is * is run both times.
	Zone string

	// Jitter delays all ticks of the job by a fixed number of whole seconds below Jitter, which depends
	// on group and name. It keeps jobs apart that have the same Cron. It is at most 24 h. Defaults to
	// none.
	Jitter time.Duration

	// CatchUp says what becomes of ticks that were not run in time: because no process was there,
	// the job was paused, or the database out of reach. Set CatchUpAll if each tick has work of its
	// own, such as the report of its day. Defaults to [CatchUpLast].
	CatchUp CatchUp

	// MaxLate limits how late a tick may begin. A later one is not run. Set it if a late run is
	// worse than none. Defaults to no limit.
	MaxLate time.Duration

	// Overrun says what becomes of ticks whose time came while the job was at work. Set
	// OverrunQueue, with CatchUpAll, if no tick may be left out. Defaults to [OverrunSkip].
	Overrun Overrun

	// Do is a job of one transaction.
	Do func(ctx context.Context, tx TX, t Tick, e epoch.Epoch) error

	// Step is one step of a job of many transactions. It is called until it reports done. What it
	// needs to know of earlier steps, it reads from what they have written, or takes from [Tick.Step].
	// If the process ends after the last step, the next owner calls Step once more: Step must then
	// find that nothing is left to do.
	Step func(ctx context.Context, tx TX, t Tick, e epoch.Epoch) (done bool, err error)

	// MaxRun limits the time that one process spends on the steps of one tick, by its monotonic
	// clock. It is checked before each step. If the steps have taken longer, the job halts until an
	// operator sets its position. After a takeover, the new owner counts from zero. Only for Step.
	// Set it so that a run without an end is noticed. Defaults to no limit.
	MaxRun time.Duration
}

// Always is the Cron of a job without end, such as a singleton that polls: a tick each second, of which
// those that come while it works are skipped. With Step, it works until Step reports done, and again
// within a second.
const Always = "@every 1s"

// CatchUp says which of the ticks that were not run in time are run late.
type CatchUp int

const (
	// CatchUpLast runs only the last one. If an earlier tick has halted the job, the last one replaces
	// it, with a new count of attempts, unless steps of it were committed or an operator requested it.
	CatchUpLast CatchUp = iota

	// CatchUpAll runs all, one after the other.
	CatchUpAll
)

// Overrun says what becomes of ticks whose time came while the job was at work.
type Overrun int

const (
	// OverrunSkip leaves them out. Only the process that has the job knows them: after a takeover, the
	// new owner treats them as late.
	OverrunSkip Overrun = iota

	// OverrunQueue treats them like ticks that were not run in time: see [CatchUp].
	OverrunQueue
)

const mostJitter = 24 * time.Hour

// plan is the part of a Job that does not depend on its transaction's type.
type plan struct {
	name      string
	delay     time.Duration // of each tick, from Jitter
	timetable timetable
	catchUp   CatchUp
	maxLate   time.Duration
	overrun   Overrun
	steps     bool
	where     *time.Location
	maxRun    time.Duration
}

func (j Job[TX]) plan(group string) (plan, error) {
	wrong := func(format string, args ...any) (plan, error) {
		return plan{}, fmt.Errorf("schedule: job %q: "+format, append([]any{j.Name}, args...)...)
	}
	switch {
	case j.Name == "" || !isName(j.Name):
		return wrong("want a name of 1 to %d bytes of UTF-8 without NUL", mostName)
	case (j.Do == nil) == (j.Step == nil):
		return wrong("set one of Do and Step")
	case j.Jitter < 0 || j.Jitter > mostJitter:
		return wrong("Jitter is %v; want 0 to %v", j.Jitter, mostJitter)
	case j.MaxLate < 0:
		return wrong("MaxLate is %v; want 0 for no limit, or a limit", j.MaxLate)
	case j.MaxRun < 0 || j.MaxRun > 0 && j.Step == nil:
		return wrong("MaxRun is %v; want 0 for no limit, or a limit with Step: consumer.Options.BatchTimeout limits Do", j.MaxRun)
	case j.CatchUp < CatchUpLast || j.CatchUp > CatchUpAll:
		return wrong("CatchUp is %d; want CatchUpLast or CatchUpAll", j.CatchUp)
	case j.Overrun < OverrunSkip || j.Overrun > OverrunQueue:
		return wrong("Overrun is %d; want OverrunSkip or OverrunQueue", j.Overrun)
	}
	if j.Zone == "Local" {
		return wrong("its Zone is %q, which may differ between machines; want UTC or a name such as Europe/Berlin", j.Zone)
	}
	where, err := time.LoadLocation(j.Zone)
	if err != nil {
		return wrong("its Zone %q: %w; is the name right, and does the machine have a time zone database (or the program import time/tzdata)?", j.Zone, err)
	}
	table, err := parse(j.Cron, where)
	if err != nil {
		return wrong("%w", err)
	}
	if table.next(time.Now()).IsZero() {
		return wrong("its Cron %q has no time in the next %d years", j.Cron, mostYears)
	}
	return plan{
		name: j.Name, delay: delay(group, j.Name, j.Jitter), timetable: table, catchUp: j.CatchUp, maxLate: j.MaxLate, overrun: j.Overrun,
		steps: j.Step != nil, where: where, maxRun: j.MaxRun,
	}, nil
}

// endless reports whether the ticks of the job have no meaning but that they come.
func (p plan) endless() bool {
	_, is := p.timetable.(every)
	return is
}

// delay is the same in all processes of the group.
func delay(group, name string, jitter time.Duration) time.Duration {
	if jitter == 0 {
		return 0
	}
	h := fnv.New64a()
	_, _ = fmt.Fprintf(h, "%q %q", group, name)
	return time.Duration(h.Sum64() % uint64(jitter)).Truncate(time.Second)
}

// Options configure a [Schedule].
type Options struct {
	// Store has the leases, in any store with a driver: see docs/leases.md. Required.
	Store cas.Store

	// Group is the group of the processes that share the jobs, and of the jobs' fences. Processes of
	// a group must use one store and one sink. Required.
	Group string

	// LeaseTTL is the time after which another process takes the jobs of a process that was killed
	// or frozen, from 500 ms to 1 h. It does so sooner if the sink is an operate.Watch, as pgsink is.
	// All processes should use the same value.
	// consumer.Options.BatchTimeout may be at most 60 % of it, and defaults to 45 %. Lower it so
	// that another process takes over sooner. Raise it if one transaction needs longer. LeaseTTL
	// defaults to 15 s.
	LeaseTTL time.Duration

	// Name names this process for operators, before the host's name and the process id. It need not
	// be unique. Set it if host name and process id do not identify the process. Optional.
	Name string

	// StartTimeout limits how long Run waits for the store at the start. Raise it if the program
	// starts long before the store. Defaults to 30 s.
	StartTimeout time.Duration

	// Logger receives the log lines. Defaults to [slog.Default].
	Logger *slog.Logger
}

const (
	defaultTTL = 15 * time.Second
	leastTTL   = 500 * time.Millisecond
	mostWait   = time.Hour
)

func (o Options) withDefaults() (Options, error) {
	if o.Store == nil {
		return o, errors.New("schedule: Options.Store is nil; open one of the drivers in cas")
	}
	if o.Group == "" {
		return o, errors.New("schedule: Options.Group is empty")
	}
	if o.LeaseTTL == 0 {
		o.LeaseTTL = defaultTTL
	}
	if o.StartTimeout == 0 {
		o.StartTimeout = waits.Timeout
	}
	for _, name := range []struct{ option, v string }{{"Group", o.Group}, {"Name", o.Name}} {
		if !isName(name.v) {
			return o, fmt.Errorf("schedule: Options.%s is %.260q; want UTF-8 without NUL, up to %d bytes", name.option, name.v, mostName)
		}
	}
	if o.LeaseTTL < leastTTL || o.LeaseTTL > mostWait {
		return o, fmt.Errorf("schedule: Options.LeaseTTL is %v; want 0 for the default of %v, or %v to %v", o.LeaseTTL, defaultTTL, leastTTL, mostWait)
	}
	if o.StartTimeout < 0 || o.StartTimeout > mostWait {
		return o, fmt.Errorf("schedule: Options.StartTimeout is %v; want 0 for the default of %v, or up to %v", o.StartTimeout, waits.Timeout, mostWait)
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	o.Logger = o.Logger.With("group", o.Group)
	return o, nil
}

// identity names this process.
func (o Options) identity() string { return process.Named(o.Name) }

const mostName = 255 // bytes

func isName(s string) bool {
	return len(s) <= mostName && utf8.ValidString(s) && !strings.ContainsRune(s, 0)
}
