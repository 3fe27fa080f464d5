package rebuild

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/epochfence/epochfence/internal/waits"
)

// reader reads the indexes of a column again and again, and counts.
type reader struct {
	look look
	jobs []string
	tell func(line string)

	reads     int
	mixtures  int // reads that found parts of other builds
	backwards int // reads that found an earlier build than the read before
	last      map[string]reading
}

// run reads until ctx ends. It fails if an index cannot be read.
func (r *reader) run(ctx context.Context) error {
	for waits.Sleep(ctx, 50*time.Millisecond) { // so that it does not use up the machine
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
	before, known := r.last[job]
	r.last[job] = found
	r.reads++
	backwards := known && found.tick.Before(before.tick)
	if backwards {
		r.backwards++
	}
	if found.wrong != "" {
		r.mixtures++
	}
	switch {
	case known && found.tick.Equal(before.tick) && found.wrong == before.wrong:
	case found.wrong != "":
		r.tell(fmt.Sprintf("a reader finds a mixture: %s says that it is of %s, and %s", job, found.tick.Format(time.RFC3339), found.wrong))
	case backwards:
		r.tell(fmt.Sprintf("a reader finds %s at %s, after %s", job, found.tick.Format(time.RFC3339), before.tick.Format(time.RFC3339)))
	}
}
