package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/pprof"
	"sync/atomic"
	"time"
)

// job is the task of a variant. The variant's process gets it as JSON.
type job struct {
	Variant string

	Database string // URL
	Kafka    string // address of a broker
	NATS     string // URL
	Table    string // the empty table for the effects

	Topic, Group string
	Partitions   int
	Messages     int // in the topic; without a topic, the messages to apply
	Batch        int // messages in a transaction, for a variant without a source
	Rate         int // messages per second that are produced meanwhile; 0: all exist at the start

	Postgres int    // process ID of the server whose processor time is measured too; 0: none
	Profile  string // prefix of the profiles' file names; "": no profiles
}

type outcome struct {
	Messages int           // applied, including those before the clock started
	Timed    int           // applied while the clock ran
	Took     time.Duration // by the clock
	CPU      time.Duration // processor time meanwhile, if measured
	Allocs   float64       // per message
	Bytes    float64       // allocated per message

	P50, P99 time.Duration // from the production of a message until it was applied, at a rate
}

var variants = map[string]func(context.Context, job) (outcome, error){}

func runVariant(ctx context.Context, in io.Reader, out io.Writer) error {
	var j job
	if err := json.NewDecoder(in).Decode(&j); err != nil {
		return fmt.Errorf("bench: read the job: %w", err)
	}
	run := variants[j.Variant]
	if run == nil {
		return fmt.Errorf("bench: there is no variant %q", j.Variant)
	}
	postgres = j.Postgres
	profiled, err := profile(j.Profile)
	if err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	o, err := run(ctx, j)
	err = errors.Join(err, profiled())
	if err != nil {
		return fmt.Errorf("bench: %s: %w", j.Variant, err)
	}
	return json.NewEncoder(out).Encode(o)
}

// postgres is the job's Postgres, for the clock.
var postgres int

// clock times the work from its first message on, without connecting and the group's assignment.
type clock struct {
	began   time.Time
	before  runtime.MemStats
	cpu     map[string]time.Duration
	skipped int // messages that were applied before it started
	running atomic.Bool
}

func (c *clock) start(applied int) {
	if c.running.CompareAndSwap(false, true) {
		runtime.ReadMemStats(&c.before)
		c.cpu = cpuTimes(postgres)
		c.skipped, c.began = applied, time.Now()
	}
}

func (c *clock) stop(applied int) outcome {
	took, cpu := time.Since(c.began), c.worked()
	var after runtime.MemStats
	runtime.ReadMemStats(&after)
	timed := applied - c.skipped
	return outcome{
		Messages: applied, Timed: timed, Took: took, CPU: cpu,
		Allocs: float64(after.Mallocs-c.before.Mallocs) / float64(timed),
		Bytes:  float64(after.TotalAlloc-c.before.TotalAlloc) / float64(timed),
	}
}

// worked returns the processor time since the start. It leaves out processes that have ended
// meanwhile, such as another variant's connection.
func (c *clock) worked() (total time.Duration) {
	for pid, now := range cpuTimes(postgres) {
		total += now - c.cpu[pid]
	}
	return total
}

// profile begins a CPU profile. end ends it, and writes the allocations since the process began.
func profile(name string) (end func() error, err error) {
	if name == "" {
		return func() error { return nil }, nil
	}
	cpu, err := os.Create(name + ".cpu")
	if err != nil {
		return nil, err
	}
	if err := pprof.StartCPUProfile(cpu); err != nil {
		return nil, errors.Join(err, cpu.Close())
	}
	return func() error {
		pprof.StopCPUProfile()
		allocs, err := os.Create(name + ".allocs")
		if err != nil {
			return errors.Join(err, cpu.Close())
		}
		return errors.Join(pprof.Lookup("allocs").WriteTo(allocs, 0), allocs.Close(), cpu.Close())
	}, nil
}
