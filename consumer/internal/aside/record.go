// Package aside writes what operators read about a process and its partitions: the audit log, signs of life,
// incidents in the log, the lag of partitions that do not move. Messages do not wait for it, and nothing is
// decided by it.
package aside

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/epochfence/epochfence/operate"
)

// This file decides when entries of the audit log are written, and which are dropped (L8). What
// they say comes from its callers. Only a hang waits for its entry.

const (
	// maxUnrecorded limits the decisions that wait to be written, recordAtOnce those in one write.
	maxUnrecorded = 1024
	recordAtOnce  = 128

	recordTimeout = 10 * time.Second

	// lastRecords is how long a Run that ends tries to write the last decisions.
	lastRecords = 2 * time.Second

	// hangTimeToRecord is how long giving up a partition waits until the reason is recorded.
	hangTimeToRecord = 2 * time.Second
)

// Recorder writes decisions to the sink's audit log. Only a partition that is given up because of a
// hang waits for that. What cannot be written is dropped. A nil Recorder writes nothing.
type Recorder struct {
	write   func(ctx context.Context, ds []operate.Decision) error
	missing func(decisions int, err error)
	log     *slog.Logger
	queue   chan operate.Decision
	ctx     context.Context // of what is being written
	stop    context.CancelFunc
	over    chan struct{}

	mu      sync.Mutex
	dropped int // since the last report
}

// NewRecorder returns a recorder that writes with write, and tells missing how many decisions were dropped. Close it.
func NewRecorder(write func(context.Context, []operate.Decision) error, missing func(decisions int, err error), log *slog.Logger) *Recorder {
	r := &Recorder{write: write, missing: missing, log: log, queue: make(chan operate.Decision, maxUnrecorded)}
	r.ctx, r.stop = context.WithCancel(context.Background())
	r.over = make(chan struct{})
	go r.run()
	return r
}

// Add never blocks: a full queue drops the decision and counts it. Messages matter more than their
// history.
func (r *Recorder) Add(d operate.Decision) {
	if r == nil {
		return
	}
	select {
	case r.queue <- d:
	default:
		r.mu.Lock()
		defer r.mu.Unlock()
		r.dropped++
	}
}

// AddNow writes a decision before it returns, within hangTimeToRecord, and reports whether it is
// written.
func (r *Recorder) AddNow(d operate.Decision) bool {
	return r != nil && r.flush([]operate.Decision{d}, hangTimeToRecord) == nil
}

// Close writes the rest, within lastRecords. Nothing may be added any more.
func (r *Recorder) Close() {
	if r == nil {
		return
	}
	close(r.queue)
	late := time.AfterFunc(lastRecords, r.stop)
	<-r.over
	late.Stop()
	r.stop()
}

// run writes what is queued together, so that a slow sink gets fewer and larger writes.
func (r *Recorder) run() {
	defer close(r.over)
	for d := range r.queue {
		ds := []operate.Decision{d}
		for more := true; more && len(ds) < recordAtOnce; {
			select {
			case d, open := <-r.queue:
				if more = open; open {
					ds = append(ds, d)
				}
			default:
				more = false
			}
		}
		_ = r.flush(ds, recordTimeout)
	}
}

// flush writes decisions, once, and reports how many are missing from the audit log.
func (r *Recorder) flush(ds []operate.Decision, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(r.ctx, timeout)
	defer cancel()
	err := r.write(ctx, ds)
	r.mu.Lock()
	dropped := r.dropped
	r.dropped = 0
	r.mu.Unlock()
	if err != nil {
		dropped += len(ds)
	}
	if dropped > 0 {
		r.log.Warn("decisions are missing from the audit log", "decisions", dropped, "err", err)
		r.missing(dropped, err)
	}
	return err
}
