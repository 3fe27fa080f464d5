package show

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/operate/stats"
)

const roleVariable = "EPOCHFENCE_SHOW_WORKER" // the [role] of a process that a show has started

// Enter must be the first call in main. In the process that the operator started, it returns at
// once. In a worker it runs work and exits. The context of work ends with SIGTERM; work's error
// goes to standard error.
func Enter(work func(ctx context.Context, stage *Stage) error) {
	told := os.Getenv(roleVariable)
	if told == "" {
		return
	}
	signal.Ignore(os.Interrupt, syscall.SIGHUP) // the parent decides when workers end
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	reports := os.Stdout
	os.Stdout = os.Stderr // libraries that print, such as River's logger, must not mix with the reports
	if err := enter(ctx, told, reports, work); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

func enter(ctx context.Context, told string, reports io.Writer, work func(context.Context, *Stage) error) error {
	var r role
	if err := json.Unmarshal([]byte(told), &r); err != nil {
		return err
	}
	db, err := OpenDatabase(ctx, r.Database, r.Schema)
	if err != nil {
		return err
	}
	defer db.Close()
	// A worker without its parent is useless, and may end like a crash.
	stage := newStage(r, os.Stdin, reports, func() { os.Exit(1) })
	stage.DB = db
	if r.HTTP != "" {
		go serveMetrics(r.HTTP, stage.Stats.Exposition())
	}
	return work(ctx, stage)
}

// Stage is a worker's connection to its parent. It is safe for concurrent use.
type Stage struct {
	Column string       // Fence or Baseline
	DB     *Database    // the column's
	Stats  *stats.Stats // of this process, served with -http

	config json.RawMessage
	stands sync.Mutex // held by who has stopped, so that an order to continue is for it
	resume chan struct{}
	armed  atomic.Value // the Point where the next transaction is to stop; "" or nil is none

	mu  sync.Mutex
	out *json.Encoder
}

// newStage returns the connection of a process with this role. It calls gone when in ends, with the
// parent.
func newStage(r role, in io.Reader, out io.Writer, gone func()) *Stage {
	s := &Stage{Column: r.Column, Stats: stats.New(), config: r.Config, resume: make(chan struct{}, 1), out: json.NewEncoder(out)}
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
				s.armed.Store(stopAt)
			}
		}
	}()
	return s
}

// Config decodes the configuration of this worker into v.
func (s *Stage) Config(v any) error {
	if err := json.Unmarshal(s.config, v); err != nil {
		return fmt.Errorf("show: the configuration of a worker: %w", err)
	}
	return nil
}

func (s *Stage) tell(r report) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.out.Encode(r); err != nil {
		os.Exit(1) // the parent has ended
	}
}

// Cue is the parent's order for one transaction or request.
type Cue struct {
	stage   *Stage
	subject string
	point   Point // where to stop, or ""
	stopped bool  // there
}

// Cue returns the pending order, if it is for one of these points, for a transaction or request that
// is about to begin. [Side.Elsewhere] understands the subject.
func (s *Stage) Cue(subject string, points ...Point) *Cue {
	c := &Cue{stage: s, subject: subject}
	if armed, _ := s.armed.Load().(Point); slices.Contains(points, armed) {
		c.point = armed
	}
	return c
}

// HangTimeout is for consumer.Options: a transaction that was frozen for less is not abandoned, and
// ends at the fence.
const HangTimeout = 2 * Patience

// Context returns ctx without its deadline and cancellation if the transaction is to be frozen. A
// frozen process usually wakes up after its deadlines and gives up. Without them, only the fence
// protects the database.
func (c *Cue) Context(ctx context.Context) context.Context {
	if c.point != "" {
		return context.WithoutCancel(ctx)
	}
	return ctx
}

// Reach blocks until the parent says continue, if the parent wants a stop at p and nobody else has
// stopped there. It reports whether it has blocked.
func (c *Cue) Reach(p Point) bool {
	if p == "" || c.point != p || !c.stage.armed.CompareAndSwap(p, Point("")) {
		return false
	}
	c.stage.stands.Lock()
	defer c.stage.stands.Unlock()
	c.stopped = true
	c.stage.tell(report{Point: p, Text: c.subject})
	<-c.stage.resume
	return true
}

// Done reports the outcome of a transaction with this error, and returns the error.
func (c *Cue) Done(err error) error {
	switch {
	case err == nil:
		c.End(Committed)
		c.Reach(AfterCommit)
	case errors.Is(err, epoch.ErrStale), errors.Is(err, epoch.ErrLowEpoch): // the fence's word, or an item's of package guard
		c.End(Stale)
	case errors.Is(err, epoch.ErrInDoubt):
		c.End(CutOff)
	default:
		c.End(Failed)
	}
	return err
}

// End reports an outcome if it is that of the incident, or one to be counted.
func (c *Cue) End(outcome string) {
	if c.stopped || outcome == Stale || outcome == CutOff || outcome == Refused {
		c.stage.tell(report{Text: outcome, Stopped: c.stopped})
	}
}

// Point is a place in a worker's work at which an incident can strike.
type Point string

// The points, in their order, as they are displayed.
const (
	InHand      Point = "with messages in hand" // the transaction has not begun
	AfterWrites Point = "after its SQL"         // in the transaction, after its last statement
	AfterCommit Point = "after its commit"      // the source has not been told
	BeforeSend  Point = "before its request"
	Answered    Point = "after its answer" // to a request, not yet recorded; for kills
	Publishing  Point = "while it publishes"
	Published   Point = "after it published" // not yet recorded
)

// applied reports whether the effects of what is in hand at p are in the database.
func (p Point) applied() bool { return p == AfterCommit || p == Publishing || p == Published }

// The outcomes of transactions and requests, as they are displayed.
const (
	Committed = "committed"
	Stale     = "refused as stale" // its claim was
	CutOff    = "cut off"          // its connection was lost before its commit was acknowledged
	Failed    = "failed"
	answered  = "answered"
	Refused   = "refused by the receiver" // its epoch was stale, or that of its producer
)

// report says that a worker has stopped at a point, or that a transaction or request has an outcome that is
// of interest. An order to a worker is the point at which to stop, or "" to continue.
type report struct {
	Point   Point  `json:"point,omitempty"`   // where it has stopped, or "" with an outcome
	Text    string `json:"text,omitempty"`    // the subject in hand, or the outcome
	Stopped bool   `json:"stopped,omitempty"` // the outcome is of what was stopped
}

// Fenced returns sink with the points of stage in its transactions. The points are around the
// handler, so that readers can copy the handler unchanged.
func Fenced[TX any](sink epoch.Sink[TX], stage *Stage) epoch.Sink[TX] {
	return FencedAt(sink, stage, func(a epoch.Advance) Scene {
		return Scene{Subject(a.Partition.Number, int64(a.From)), InHand, AfterWrites, AfterCommit}
	})
}

// Scene has the points of one transaction. A zero point is none.
type Scene struct {
	Subject string
	Before  Point // where the transaction has not begun
	Written Point // where the handler has returned
	Last    Point // AfterCommit, or none
}

// FencedAt is [Fenced] with points that depend on where a transaction begins.
func FencedAt[TX any](sink epoch.Sink[TX], stage *Stage, scene func(epoch.Advance) Scene) epoch.Sink[TX] {
	return &stagedSink[TX]{sink, stage, scene}
}

type stagedSink[TX any] struct {
	epoch.Sink[TX]
	stage *Stage
	scene func(epoch.Advance) Scene
}

// Unwrap lets [epoch.As] find what else the sink can do.
func (s *stagedSink[TX]) Unwrap() epoch.Sink[TX] { return s.Sink }

func (s *stagedSink[TX]) Commit(ctx context.Context, as []epoch.Advance, o epoch.TxOptions, calls ...func(context.Context, TX) error) error {
	if len(as) == 0 || len(calls) == 0 { // no messages, which could be done elsewhere
		return s.Sink.Commit(ctx, as, o, calls...)
	}
	at := s.scene(as[0])
	cue := s.stage.Cue(at.Subject, at.Before, at.Written, at.Last)
	ctx = cue.Context(ctx)
	cue.Reach(at.Before)
	calls = slices.Clone(calls)
	last := calls[len(calls)-1]
	calls[len(calls)-1] = func(ctx context.Context, tx TX) error {
		if err := last(ctx, tx); err != nil {
			return err
		}
		cue.Reach(at.Written)
		return nil
	}
	return cue.Done(s.Sink.Commit(ctx, as, o, calls...))
}

// Subject names a transaction by the partition and offset of its first message.
func Subject(partition int32, offset int64) string { return fmt.Sprintf("%d/%d", partition, offset) }

// Position returns the partition and offset of a [Subject]. ok is false if it is the subject of a
// request.
func Position(subject string) (partition int32, offset int64, ok bool) {
	n, _ := fmt.Sscanf(subject, "%d/%d", &partition, &offset)
	return partition, offset, n == 2
}

// Sending is Base with the points [BeforeSend] and [Answered]. A request that was stopped before it is
// sent even if its context has ended meanwhile, so that only the receiver can refuse it. Its subject is
// its idempotency key.
type Sending struct {
	Base  http.RoundTripper
	Stage *Stage
}

// RoundTrip sends a request.
func (s Sending) RoundTrip(r *http.Request) (*http.Response, error) {
	cue := s.Stage.Cue(strings.Trim(r.Header.Get("Idempotency-Key"), `"`), BeforeSend, Answered)
	r = r.WithContext(cue.Context(r.Context()))
	cue.Reach(BeforeSend)
	answer, err := s.Base.RoundTrip(r)
	switch {
	case err != nil:
		cue.End(Failed)
	case answer.StatusCode == http.StatusPreconditionFailed:
		cue.End(Refused)
	default:
		cue.End(answered)
		cue.Reach(Answered)
	}
	return answer, err
}
