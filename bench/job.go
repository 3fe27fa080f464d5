package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"runtime"
	"sync/atomic"
	"time"
)

// job is what a variant is to do. It goes to the variant's process as JSON.
type job struct {
	Variant string

	Database string // URL
	Kafka    string // address of a broker
	NATS     string // URL
	Table    string // where the effects go, which is empty

	Topic, Group string
	Partitions   int
	Messages     int // in the topic; for a variant without a topic, how many there are to be
	Batch        int // messages in a transaction, for a variant that is not given them by a source
	Rate         int // messages a second that are produced meanwhile; 0: all are there
	Hot          bool
	Committers   int // of consumer.Options; a variant's own, as the others of its row have none

	Postgres int    // process id of the server, whose processors' time is measured, too; 0: none is
	Profile  string // the beginning of the profiles' file names; "": none are wanted
}

// outcome is what came of it.
type outcome struct {
	Messages int           // that were applied, with those before the clock was started
	Timed    int           // of them while the clock ran
	Took     time.Duration // by the clock
	CPU      time.Duration // of processors, meanwhile, if it was measured
	Allocs   float64       // for each message
	Bytes    float64       // allocated for each message

	P50, P99 time.Duration // from when a message was produced until it was applied, at a rate

	// Of a process that has nothing to do.
	Traffic    float64 // messages a second in and out
	Goroutines float64 // of a partition
	KiB        float64 // of a partition, on the heap and in stacks
}

// variants do jobs, by their names.
var variants = map[string]func(context.Context, job) (outcome, error){}

// runVariant is the whole of a variant's process.
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

// postgres is the job's, for the clock.
var postgres int

// clock times the work from its first message on, so that neither connections nor the
// group's assignment are in it.
type clock struct {
	began   time.Time
	before  runtime.MemStats
	cpu     map[string]time.Duration
	skipped int // messages that were applied before it was started
	running atomic.Bool
}

// start starts the clock unless it runs.
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

// worked is how long processors have, since the start. A process that has ended meanwhile,
// such as another variant's connection, does not count.
func (c *clock) worked() (total time.Duration) {
	for pid, now := range cpuTimes(postgres) {
		total += now - c.cpu[pid]
	}
	return total
}
