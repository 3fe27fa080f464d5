package schedule

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/internal/text/process"
	"github.com/epochfence/epochfence/internal/waits"
)

// This file has the options of a schedule, with their defaults and limits. job.go checks the jobs.

// Options configure a [Schedule].
type Options struct {
	// Store has the leases, in any store with a driver: see docs/leases.md. Required.
	Store cas.Store

	// Group is the group of the processes that share the jobs, and of the jobs' fences. Processes of
	// a group must use one store and one sink. Required.
	Group string

	// LeaseTTL is the time after which another process takes the jobs of a process that was killed
	// or frozen, from 500 ms to 1 h. All processes should use the same value.
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
