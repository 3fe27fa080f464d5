package statusz

import (
	"context"
	"errors"
	"time"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/operate"
)

// This file reads the group's state from the sink, at most once a second for all viewers, and
// measures rates between readings. view.go decides what is shown.

const (
	// readEvery is the minimum time between two reads of the sink, and readTimeout the maximum
	// duration of a read.
	readEvery   = time.Second
	readTimeout = 5 * time.Second

	// rateOver is the period over which a partition's rate is measured.
	rateOver = 10 * time.Second

	listed = 50
)

// group reads the sink for all requests.
type group struct {
	Options
	sem  chan struct{} // holds a value while no read is running
	last *groupReading // nil before the first; guarded by sem
	past []sample      // of the last rateOver, oldest first; guarded by sem
}

// groupReading is the result of a read. It is immutable.
type groupReading struct {
	tried, at  time.Time // by this process's clock; at is zero if no read has succeeded
	err        error     // of the last attempt; the rest is then from the read before it
	partitions []operate.Partition
	lives      operate.Lives
	rates      map[epoch.Partition]float64        // messages a second; nil before there are two readings
	logs       map[epoch.Partition]operate.Extent // nil where they are not known
	logsErr    error
	halts      map[epoch.Partition]*operate.Decision
	decisions  []operate.Decision // newest first
	dead       []operate.DeadLetter
	deferred   []operate.DeadLetter
	entries    []operate.OutboxEntry
}

type sample struct {
	at   time.Time
	next map[epoch.Partition]epoch.Offset
}

func newGroup(o Options) *group {
	g := &group{Options: o, sem: make(chan struct{}, 1)}
	g.sem <- struct{}{}
	return g
}

// read returns a reading that is not older than readEvery. Concurrent callers wait for a running
// read.
func (g *group) read(ctx context.Context) (*groupReading, error) {
	select {
	case <-g.sem:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	defer func() { g.sem <- struct{}{} }()
	if g.last != nil && time.Since(g.last.tried) < readEvery {
		return g.last, nil
	}
	// The read is not tied to this request: a client that leaves does not abort it for the others.
	reading, cancel := context.WithTimeout(context.WithoutCancel(ctx), readTimeout)
	defer cancel()
	now := &groupReading{tried: time.Now()}
	if err := g.fetch(reading, now); err != nil {
		failed := groupReading{}
		if g.last != nil {
			failed = *g.last
		}
		if g.last == nil || g.last.err == nil {
			g.Logger.Warn("statusz: the sink could not be read", "err", err)
		}
		failed.tried, failed.err = time.Now(), err
		g.last = &failed
		return g.last, nil
	}
	now.at = time.Now()
	g.measure(now)
	g.last = now
	return now, nil
}

func (g *group) fetch(ctx context.Context, r *groupReading) (err error) {
	if g.Operator != nil {
		if r.partitions, err = g.Operator.Partitions(ctx, g.Filter); err != nil {
			return err
		}
		if r.lives, err = g.Operator.Processes(ctx, g.Filter.Group); err != nil {
			return err
		}
		if r.halts, err = operate.Halts(ctx, g.Operator, r.partitions); err != nil {
			return err
		}
		if r.decisions, err = g.Operator.History(ctx, operate.HistoryQuery{Limit: 4 * listed}); err != nil {
			return err
		}
		if r.dead, err = g.Operator.DeadLetters(ctx, operate.DeadLetterQuery{Filter: g.Filter, Limit: listed}); err != nil {
			return err
		}
		if r.deferred, err = g.Operator.DeadLetters(ctx, operate.DeadLetterQuery{Filter: g.Filter, Deferred: true, Limit: listed}); err != nil {
			return err
		}
		if r.entries, err = g.Operator.OutboxEntries(ctx, operate.OutboxQuery{Filter: g.Filter, Limit: listed}); err != nil {
			return err
		}
	}
	if g.Logs != nil && g.Operator != nil {
		if r.logs, r.logsErr = g.Logs(ctx, operate.Fences(r.partitions)); r.logsErr != nil {
			g.Logger.Debug("statusz: the broker could not be asked about the logs", "err", r.logsErr)
		}
	}
	return nil
}

func (g *group) measure(r *groupReading) {
	now := sample{at: r.at, next: make(map[epoch.Partition]epoch.Offset, len(r.partitions))}
	for _, p := range r.partitions {
		if isJob(p.Fence) { // its position moves with the clock
			continue
		}
		now.next[p.Fence.Partition] = p.Next
	}
	for len(g.past) > 0 && now.at.Sub(g.past[0].at) > rateOver+readTimeout {
		g.past = g.past[1:]
	}
	if len(g.past) > 0 {
		before := g.past[0]
		r.rates = map[epoch.Partition]float64{}
		for p, next := range now.next {
			if was, known := before.next[p]; known {
				r.rates[p] = max(float64(next-was)/now.at.Sub(before.at).Seconds(), 0)
			}
		}
	}
	g.past = append(g.past, now)
	for len(g.past) > 1 && now.at.Sub(g.past[1].at) >= rateOver {
		g.past = g.past[1:]
	}
}

func gone(err error) bool {
	return errors.Is(err, epoch.ErrMissing) || errors.Is(err, operate.ErrNoDeadLetter) || errors.Is(err, operate.ErrNoOutboxEntry)
}
