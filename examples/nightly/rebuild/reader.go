package rebuild

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/epochfence/epochfence/internal/backoff"
)

// reader reads the indexes of a column again and again, and counts.
type reader struct {
	look look
	jobs []string
	tell func(line string)

	mu     sync.Mutex
	counts counts
	last   map[string]reading
}

type counts struct {
	reads     int
	mixtures  int // reads that found parts of other builds
	backwards int // reads that found an earlier build than the read before
}

// betweenReads keeps the reader from using up the machine.
const betweenReads = 50 * time.Millisecond

func newReader(l look, jobs []string, tell func(string)) *reader {
	return &reader{look: l, jobs: jobs, tell: tell, last: map[string]reading{}}
}

// run reads until ctx ends. It fails if an index cannot be read.
func (r *reader) run(ctx context.Context) error {
	for backoff.Sleep(ctx, betweenReads) {
		if err := r.read(ctx); err != nil && ctx.Err() == nil {
			return err
		}
	}
	return nil
}

// read reads each index once.
func (r *reader) read(ctx context.Context) error {
	for _, job := range r.jobs {
		found, err := r.look(ctx, job)
		if errors.Is(err, errNotYet) {
			continue
		}
		if err != nil {
			return fmt.Errorf("read the index of job %s: %w", job, err)
		}
		r.count(job, found)
	}
	return nil
}

func (r *reader) count(job string, found reading) {
	r.mu.Lock()
	defer r.mu.Unlock()
	before, known := r.last[job]
	r.last[job] = found
	r.counts.reads++
	backwards := known && found.tick.Before(before.tick)
	if backwards {
		r.counts.backwards++
	}
	if found.wrong != "" {
		r.counts.mixtures++
	}
	switch {
	case known && found.is(before):
	case found.wrong != "":
		r.tell(fmt.Sprintf("a reader finds a mixture: %s says that it is of %s, and %s", job, found.tick.Format(time.RFC3339), found.wrong))
	case backwards:
		r.tell(fmt.Sprintf("a reader finds %s at %s, after %s", job, found.tick.Format(time.RFC3339), before.tick.Format(time.RFC3339)))
	}
}

// result returns the counts, and what each index was when it was read last.
func (r *reader) result() (counts, map[string]reading) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.counts, r.last
}
