package show

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"slices"
	"sync"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/ops/stats"
)

// Stage is a worker's connection to its parent. It is safe for concurrent use.
type Stage struct {
	Stats *stats.Stats // of this process, served with -http

	config string     // as JSON
	stands sync.Mutex // held by who has stopped, so that an order to continue is for it
	resume chan struct{}

	mu    sync.Mutex
	out   *json.Encoder
	armed Point // where the next transaction is to stop, or ""
}

// newStage returns the connection of a process with this configuration. It calls gone when in ends,
// with the parent.
func newStage(config string, in io.Reader, out io.Writer, gone func()) *Stage {
	s := &Stage{Stats: stats.New(), config: config, resume: make(chan struct{}, 1), out: json.NewEncoder(out)}
	go func() {
		defer gone()
		for orders := json.NewDecoder(in); ; {
			var stopAt Point
			switch err := orders.Decode(&stopAt); {
			case err != nil:
				return
			case stopAt == "":
				s.resume <- struct{}{}
			default:
				s.mu.Lock()
				s.armed = stopAt
				s.mu.Unlock()
			}
		}
	}()
	return s
}

// Config decodes the configuration of this worker into v.
func (s *Stage) Config(v any) error { return json.Unmarshal([]byte(s.config), v) }

// Ready reports the address of this process, for [Crew.Address].
func (s *Stage) Ready(address string) { s.tell(report{Kind: reportReady, Text: address}) }

func (s *Stage) tell(r report) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.out.Encode(r); err != nil {
		os.Exit(1) // the parent has ended
	}
}

// Cue is the parent's order for one transaction or request. The zero value has no order.
type Cue struct {
	stage   *Stage
	subject string
	point   Point // where to stop, or ""
	stopped bool  // there
}

// Cue takes the pending order, if it is for one of these points, for a transaction or request that
// is about to begin. [Side.Elsewhere] understands the subject.
func (s *Stage) Cue(subject string, points ...Point) *Cue {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := &Cue{stage: s, subject: subject}
	if s.armed != "" && slices.Contains(points, s.armed) {
		c.point, s.armed = s.armed, ""
	}
	return c
}

// HangTimeout is for consumer.Options: a transaction that was frozen for less is not abandoned, and
// ends at the fence.
const HangTimeout = 2 * patience

// Context returns ctx without its deadline and cancellation if the transaction is to be frozen. A
// frozen process usually wakes up after its deadlines and gives up. Without them, only the fence
// protects the database.
func (c *Cue) Context(ctx context.Context) context.Context {
	if c.point != "" {
		return context.WithoutCancel(ctx)
	}
	return ctx
}

// Reach blocks until the parent says continue, if the parent wants a stop at p.
func (c *Cue) Reach(p Point) {
	if c.point != p || p == "" {
		return
	}
	c.stage.stands.Lock()
	defer c.stage.stands.Unlock()
	c.point, c.stopped = "", true
	c.stage.tell(report{Kind: reportReached, Point: p, Text: c.subject})
	<-c.stage.resume
}

// Done reports the outcome of a transaction with this error, and returns the error.
func (c *Cue) Done(err error) error {
	switch {
	case err == nil:
		c.end(Committed)
		c.Reach(AfterCommit)
	case errors.Is(err, epoch.ErrStale), errors.Is(err, epoch.ErrLowEpoch): // the fence's word, or an item's of package guard
		c.end(Stale)
	case errors.Is(err, epoch.ErrInDoubt):
		c.end(CutOff)
	default:
		c.end(Failed)
	}
	c.keep()
	return err
}

// end reports an outcome if it is that of the incident, or one to be counted.
func (c *Cue) end(outcome string) {
	if c.stopped || outcome == Stale || outcome == CutOff || outcome == Refused {
		c.stage.tell(report{Kind: reportEnded, Text: outcome, Stopped: c.stopped})
	}
}

// keep keeps an order whose point was not reached for the next transaction.
func (c *Cue) keep() {
	c.stage.mu.Lock()
	defer c.stage.mu.Unlock()
	if c.stage.armed == "" {
		c.stage.armed = c.point
	}
}
