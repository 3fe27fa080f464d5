package show

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/ops/stats"
)

// Stage is a worker's connection to its parent. It is safe for concurrent use.
type Stage struct {
	config json.RawMessage
	resume chan struct{}

	writing sync.RWMutex // read-locked by writers to the database

	// Stats are the statistics of this process, from [Reporting].
	Stats *stats.Stats

	mu      sync.Mutex
	out     *json.Encoder
	armed   Point // where the next transaction is to stop, or ""
	answers map[int32]answers
}

func newStage(in io.Reader, out io.Writer, gone func()) (*Stage, error) {
	lines := bufio.NewReader(in)
	config, err := lines.ReadBytes('\n')
	if err != nil {
		return nil, fmt.Errorf("show: read the worker's configuration: %w", err)
	}
	s := &Stage{Stats: stats.New(), config: config, resume: make(chan struct{}, 1), out: json.NewEncoder(out), answers: map[int32]answers{}}
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
	case orderServe:
		s.serve()
	}
}

// Config decodes the configuration from [Crew.Start] into v.
func (s *Stage) Config(v any) error { return json.Unmarshal(s.config, v) }

// Holds reports that this worker has the partition from now on. number orders the reports of
// several workers, which may arrive out of order: it grows from owner to owner, as epochs and
// generations do. It is 0 if nothing counts owners.
func (s *Stage) Holds(partition int32, number int64) {
	s.tell(report{Kind: reportHolds, Partition: partition, Number: number})
}

// Ready reports the address of this process, which [StartHelper] has started.
func (s *Stage) Ready(address string) {
	s.tell(report{Kind: reportReady, Text: address})
}

// Writing runs f, which writes to the database. Meanwhile the process does not stop at [Unlocked],
// [BeforeSend] or [Answered]: a process frozen with SQLite's write lock would block all others.
func (s *Stage) Writing(f func() error) error {
	s.writing.RLock()
	defer s.writing.RUnlock()
	return f()
}

// Late reports that the source refused an offset or ack after its effects were committed.
func (s *Stage) Late(err error) {
	s.tell(report{Kind: reportLate, Text: err.Error()})
}

func (s *Stage) tell(r report) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.out.Encode(r); err != nil {
		os.Exit(1) // the parent has ended
	}
}

// Cue is the parent's order for one transaction. The zero value has no order.
type Cue struct {
	stage   *Stage
	point   Point
	work    Work
	subject string
	answers int  // to requests, to be recorded
	stopped bool // at its point
}

// Cue takes the pending order, if it is for one of these points, for a transaction that is about to
// begin.
func (s *Stage) Cue(work Work, points ...Point) *Cue {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := &Cue{stage: s, work: work}
	if slices.Contains(points, s.armed) {
		c.point, s.armed = s.armed, ""
	}
	return c
}

// About sets the subject of the request in hand, which [Crew.Elsewhere] understands.
func (c *Cue) About(subject string) *Cue {
	c.subject = subject
	return c
}

// Context returns ctx without its deadline and cancellation if the transaction is to be frozen. A
// frozen process usually wakes up after its deadlines and gives up. Without them, only the fence
// protects the database.
func (c *Cue) Context(ctx context.Context) context.Context {
	switch c.point {
	case InHand, Unlocked, BeforeWrites, AfterWrites, BeforeSend, Answered:
		return context.WithoutCancel(ctx)
	default:
		return ctx
	}
}

// Reach blocks until the parent says continue, if the transaction was told to stop at p.
func (c *Cue) Reach(p Point) {
	if c.point != p {
		return
	}
	switch p {
	case Unlocked, BeforeSend, Answered:
		c.stage.writing.Lock()
		defer c.stage.writing.Unlock()
	}
	c.point, c.stopped = "", true
	c.tell(report{Kind: reportReached, Point: p})
	<-c.stage.resume
}

func (c *Cue) tell(r report) {
	r.Work, r.Subject = c.work, c.subject
	c.stage.tell(r)
}

// Done reports the outcome of the transaction. A nil err means that it committed with this many
// messages. Done distinguishes [epoch.ErrStale] and [epoch.ErrInDoubt] from other errors. An order
// whose point was not reached is kept for the next transaction.
func (c *Cue) Done(messages int, err error) {
	r := report{Kind: reportApplied, Messages: messages, Answers: c.answers}
	if err != nil {
		r.Kind, r.Text = reportFailed, err.Error()
	}
	switch {
	case errors.Is(err, epoch.ErrStale):
		r.Kind = reportStale
	case errors.Is(err, epoch.ErrInDoubt):
		r.Kind = reportDoubt
	}
	c.tell(r)
	if err == nil {
		c.Reach(AfterCommit)
	}
	c.keep()
}

func (c *Cue) keep() {
	c.stage.mu.Lock()
	defer c.stage.mu.Unlock()
	if c.stage.armed == "" {
		c.stage.armed = c.point
	}
}
