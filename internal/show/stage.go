package show

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"

	"github.com/epochfence/epochfence/epoch"
)

// Stage is a worker's end of the pipes to its parent. It is safe for
// concurrent use.
type Stage struct {
	config json.RawMessage
	resume chan struct{}

	mu    sync.Mutex
	out   *json.Encoder
	armed Point // where the next transaction is to stop, "" for nowhere
}

// newStage reads the configuration and then, on a goroutine of its own, orders
// until in ends, when it calls gone.
func newStage(in io.Reader, out io.Writer, gone func()) (*Stage, error) {
	lines := bufio.NewReader(in)
	config, err := lines.ReadBytes('\n')
	if err != nil {
		return nil, fmt.Errorf("show: read the worker's configuration: %w", err)
	}
	s := &Stage{config: config, resume: make(chan struct{}, 1), out: json.NewEncoder(out)}
	go func() {
		defer gone()
		for orders := json.NewDecoder(lines); ; {
			var o order
			if orders.Decode(&o) != nil {
				return
			}
			s.obey(o)
		}
	}()
	return s, nil
}

func (s *Stage) obey(o order) {
	switch o.Do {
	case orderStopAt:
		s.mu.Lock()
		s.armed = o.Point
		s.mu.Unlock()
		s.tell(report{Kind: reportArmed, Point: o.Point})
	case orderGo:
		s.resume <- struct{}{}
	}
}

// Config decodes what the parent passed to [Crew.Start] into v.
func (s *Stage) Config(v any) error { return json.Unmarshal(s.config, v) }

// Holds reports that this worker has the partition from now on.
func (s *Stage) Holds(partition int32) {
	s.tell(report{Kind: reportHolds, Partition: partition})
}

// Late reports that the source refused the offset of effects which are
// committed already.
func (s *Stage) Late(err error) {
	s.tell(report{Kind: reportLate, Text: err.Error()})
}

func (s *Stage) tell(r report) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.out.Encode(r); err != nil {
		os.Exit(1) // the parent is gone
	}
}

// Cue is what the parent has in mind for one transaction. Its zero value is
// nothing.
type Cue struct {
	stage *Stage
	point Point
	work  Work
}

// Cue takes the order that is waiting, if there is one, for a transaction which
// is about to begin with work in hand.
func (s *Stage) Cue(work Work) *Cue {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := &Cue{stage: s, point: s.armed, work: work}
	s.armed = ""
	return c
}

// Context is ctx without its deadline and cancellation if the transaction is to
// be frozen. A frozen process usually wakes up with its deadlines passed and
// gives up by itself; with this, nothing is left between it and the database
// but the fence.
func (c *Cue) Context(ctx context.Context) context.Context {
	switch c.point {
	case InHand, Unlocked, BeforeWrites, AfterWrites:
		return context.WithoutCancel(ctx)
	default:
		return ctx
	}
}

// Reach blocks if this is the point the transaction was told to stop at, until
// the parent says go on.
func (c *Cue) Reach(p Point) {
	if c.point != p {
		return
	}
	c.point = ""
	c.stage.tell(report{Kind: reportReached, Point: p, Work: c.work})
	<-c.stage.resume
}

// Done reports what became of the transaction: nil, and it committed with this
// many messages; [epoch.ErrStale] and [epoch.ErrInDoubt] are told from other
// errors. An order that the transaction did not come to is kept for the next
// one.
func (c *Cue) Done(messages int, err error) {
	r := report{Kind: reportApplied, Work: c.work, Messages: messages}
	if err != nil {
		r.Kind, r.Text = reportFailed, err.Error()
	}
	switch {
	case errors.Is(err, epoch.ErrStale):
		r.Kind = reportStale
	case errors.Is(err, epoch.ErrInDoubt):
		r.Kind = reportDoubt
	}
	c.stage.tell(r)
	if err == nil {
		c.Reach(AfterCommit)
	}
	c.stage.mu.Lock()
	defer c.stage.mu.Unlock()
	if c.stage.armed == "" {
		c.stage.armed = c.point
	}
}
