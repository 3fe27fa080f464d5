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

// Stage is a worker's end of the pipes to its parent. It is safe for
// concurrent use.
type Stage struct {
	config json.RawMessage
	resume chan struct{}

	writing sync.RWMutex // read-locked by what writes to the database

	// Stats are those of this process: [Reporting] tells them what the consumer
	// observes.
	Stats *stats.Stats

	mu      sync.Mutex
	out     *json.Encoder
	armed   Point // where the next transaction is to stop, "" for nowhere
	answers map[int32]answers
}

// newStage reads the configuration and then, on a goroutine of its own, orders
// until in ends, when it calls gone.
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

// Config decodes what the parent passed to [Crew.Start] into v.
func (s *Stage) Config(v any) error { return json.Unmarshal(s.config, v) }

// Holds reports that this worker has the partition from now on. Reports of several
// workers may arrive in another order than the one in which they got it: number
// grows from owner to owner, as epochs and generations do, and is 0 where nothing
// counts them.
func (s *Stage) Holds(partition int32, number int64) {
	s.tell(report{Kind: reportHolds, Partition: partition, Number: number})
}

// Ready reports that this process, started by [StartHelper], can be reached.
func (s *Stage) Ready(address string) {
	s.tell(report{Kind: reportReady, Text: address})
}

// Writing runs f, which writes to the database. While it runs the process is not
// stopped at [Unlocked], [BeforeSend] or [Answered]: with SQLite's write lock in a
// frozen process, nobody could continue.
func (s *Stage) Writing(f func() error) error {
	s.writing.RLock()
	defer s.writing.RUnlock()
	return f()
}

// Late reports that the source refused the offset, or the ack, of effects which
// are committed already.
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
	stage   *Stage
	point   Point
	work    Work
	subject string
	answers int  // to requests, that are to be recorded
	stopped bool // at its point
}

// Cue takes the order that is waiting, if there is one and it is for one of
// these points, for a transaction which is about to begin with work in hand.
func (s *Stage) Cue(work Work, points ...Point) *Cue {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := &Cue{stage: s, work: work}
	if slices.Contains(points, s.armed) {
		c.point, s.armed = s.armed, ""
	}
	return c
}

// About says what the request in hand is about, in the words that [Crew.Elsewhere]
// understands.
func (c *Cue) About(subject string) *Cue {
	c.subject = subject
	return c
}

// Context is ctx without its deadline and cancellation if the transaction is to
// be frozen. A frozen process usually wakes up with its deadlines passed and
// gives up by itself; with this, nothing is left between it and the database
// but the fence.
func (c *Cue) Context(ctx context.Context) context.Context {
	switch c.point {
	case InHand, Unlocked, BeforeWrites, AfterWrites, BeforeSend, Answered:
		return context.WithoutCancel(ctx)
	default:
		return ctx
	}
}

// Reach blocks if this is the point the transaction was told to stop at, until
// the parent says continue.
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

// Done reports what became of the transaction: nil, and it committed with this
// many messages; [epoch.ErrStale] and [epoch.ErrInDoubt] are told from other
// errors. An order that the transaction did not come to is kept for the next
// one.
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

// keep leaves an order that was not come to for the next one.
func (c *Cue) keep() {
	c.stage.mu.Lock()
	defer c.stage.mu.Unlock()
	if c.stage.armed == "" {
		c.stage.armed = c.point
	}
}
