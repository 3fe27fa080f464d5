package show

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/epochfence/epochfence/epoch"
)

// parentOf is the parent's end of a stage.
type parentOf struct {
	*Stage
	t       *testing.T
	orders  *json.Encoder
	reports chan report
}

func newParentOf(t *testing.T) *parentOf {
	t.Helper()
	in, orders := io.Pipe()
	reports, out := io.Pipe()
	t.Cleanup(func() { _, _ = orders.Close(), reports.Close() })
	p := &parentOf{newStage(role{}, in, out, func() {}), t, json.NewEncoder(orders), make(chan report)}
	go func() {
		for decoder := json.NewDecoder(reports); ; {
			var r report
			if decoder.Decode(&r) != nil {
				return
			}
			p.reports <- r
		}
	}()
	return p
}

// order returns once the stage has its order: to stop at a point, or "" to continue.
func (p *parentOf) order(stopAt Point) {
	p.t.Helper()
	if err := p.orders.Encode(stopAt); err != nil {
		p.t.Fatal(err)
	}
	for stopAt != "" && p.armed.Load() != stopAt && p.t.Context().Err() == nil {
		runtime.Gosched()
	}
}

// reported waits for a report.
func (p *parentOf) reported(want report) {
	p.t.Helper()
	select {
	case r := <-p.reports:
		if r != want {
			p.t.Fatalf("report is %+v, want %+v", r, want)
		}
	case <-time.After(20 * time.Second):
		p.t.Fatalf("no report, want %+v", want)
	}
}

// silent fails the test if there is a report. Nothing is to be waited for: it must not come.
func (p *parentOf) silent() {
	p.t.Helper()
	select {
	case r := <-p.reports:
		p.t.Errorf("report %+v", r)
	case <-time.After(50 * time.Millisecond):
	}
}

func stopped(at Point, subject string) report {
	return report{Point: at, Text: subject}
}

func ended(outcome string, stopped bool) report {
	return report{Text: outcome, Stopped: stopped}
}

// plainSink commits what its calls allow.
type plainSink struct{ epoch.Sink[int] }

func (plainSink) Commit(ctx context.Context, _ []epoch.Advance, o epoch.TxOptions, calls ...func(context.Context, int) error) error {
	for _, call := range calls {
		if err := call(ctx, 0); err != nil {
			return err
		}
	}
	return nil
}

func TestATransactionThatWasStoppedHasNoDeadline(t *testing.T) {
	for _, at := range []Point{InHand, AfterWrites} {
		p := newParentOf(t)
		p.order(at)
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			as := []epoch.Advance{{Partition: epoch.Partition{Number: 2}, From: 7, To: 9}}
			_ = Fenced(plainSink{}, p.Stage).Commit(ctx, as, epoch.TxOptions{}, func(ctx context.Context, _ int) error {
				cancel()
				return ctx.Err()
			})
		}()
		p.reported(stopped(at, "2/7"))
		p.order("")
		p.reported(ended(Committed, true))
	}
}

func TestAPointOfATransactionIsPassedByOthers(t *testing.T) {
	p := newParentOf(t)
	p.order("half way")
	sink := FencedAt(plainSink{}, p.Stage, func(a epoch.Advance) Scene {
		s := Scene{Subject: Subject(0, int64(a.From))}
		if a.From == 2 {
			s.Before = "half way"
		}
		return s
	})
	go func() {
		for from := range epoch.Offset(3) {
			_ = sink.Commit(t.Context(), []epoch.Advance{{From: from, To: from + 1}}, epoch.TxOptions{}, func(context.Context, int) error { return nil })
		}
	}()
	p.reported(stopped("half way", "0/2"))
	p.order("")
	p.reported(ended(Committed, true))
}

func TestAnOrderToContinueIsForWhoHasSaidWhereItStands(t *testing.T) {
	p := newParentOf(t)
	var standing sync.WaitGroup
	stand := func(subject string) { // as if the order had come twice
		p.order(InHand)
		cue := p.Cue(subject, InHand)
		standing.Go(func() { cue.Reach(InHand) })
	}
	stand("0/1")
	p.reported(stopped(InHand, "0/1"))
	stand("0/2")
	p.silent()
	p.order("")
	p.reported(stopped(InHand, "0/2"))
	p.order("")
	standing.Wait()
}

func TestOneOfTwoTransactionsThatBeginWithAnOrderIsStopped(t *testing.T) {
	p := newParentOf(t)
	p.order(AfterWrites)
	first, second := p.Cue("0/1", InHand, AfterWrites), p.Cue("0/2", InHand, AfterWrites)
	first.Reach(InHand) // which is not the point
	go first.Reach(AfterWrites)
	p.reported(stopped(AfterWrites, "0/1"))
	second.Reach(AfterWrites) // would block
	p.order("")
}

func TestWhatAnItemRefusesIsStale(t *testing.T) {
	p := newParentOf(t)
	go func() { _ = p.Cue("0/1").Done(&epoch.LowEpochError{Epoch: 3, Seen: 4}) }()
	p.reported(ended(Stale, false))
}

// receiver answers each request with a status, if the request's context allows.
type receiver int

func (status receiver) RoundTrip(r *http.Request) (*http.Response, error) {
	if err := r.Context().Err(); err != nil {
		return nil, err
	}
	return &http.Response{StatusCode: int(status), Body: http.NoBody, Request: r}, nil
}

func (p *parentOf) request(ctx context.Context, status int) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://127.0.0.1/", http.NoBody)
	if err != nil {
		p.t.Error(err)
		return
	}
	r.Header.Set("Idempotency-Key", `"payment-7"`)
	if answer, err := (Sending{receiver(status), p.Stage}).RoundTrip(r); err == nil {
		_ = answer.Body.Close()
	}
}

func TestARequestThatWasStoppedReachesTheReceiverAlthoughItsContextHasEnded(t *testing.T) {
	p := newParentOf(t)
	p.order(BeforeSend)
	ctx, cancel := context.WithCancel(t.Context())
	go p.request(ctx, http.StatusPreconditionFailed)
	p.reported(stopped(BeforeSend, "payment-7"))
	cancel()
	p.order("")
	p.reported(ended(Refused, true))
}

func TestAWorkerIsStoppedAfterAnAnswer(t *testing.T) {
	p := newParentOf(t)
	p.order(Answered)
	go p.request(t.Context(), http.StatusCreated)
	p.reported(stopped(Answered, "payment-7"))
	p.order("")
}

func TestARequestThatIsRefusedAsStaleIsReportedAndOthersAreNot(t *testing.T) {
	p := newParentOf(t)
	p.request(t.Context(), http.StatusCreated)
	go p.request(t.Context(), http.StatusPreconditionFailed)
	p.reported(ended(Refused, false))
	p.silent()
}

func TestADatabaseSaysWhetherItsLockIsFree(t *testing.T) {
	d, err := OpenDatabase(t.Context(), filepath.Join(t.TempDir(), "a file with spaces, ? and %.db"), "")
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if !d.unlocked(t.Context()) {
		t.Error("nobody has the lock")
	}
	tx, err := d.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if d.unlocked(t.Context()) {
		t.Error("a transaction has the lock")
	}
	if err := tx.Rollback(); err != nil || !d.unlocked(t.Context()) {
		t.Errorf("it has ended, %v", err)
	}
}
