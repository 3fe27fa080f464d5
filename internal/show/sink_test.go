package show

import (
	"context"
	"encoding/json"
	"io"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/epochfence/epochfence/epoch"
)

// plainSink commits what its calls allow.
type plainSink struct{ epoch.Sink[int] }

func (plainSink) Commit(ctx context.Context, _ []epoch.Advance, calls ...func(context.Context, int) error) error {
	for _, call := range calls {
		if err := call(ctx, 0); err != nil {
			return err
		}
	}
	return nil
}

// testStage returns a stage, and the ends that its parent has.
func testStage(t *testing.T) (*Stage, *json.Encoder, *json.Decoder) {
	t.Helper()
	in, orders := io.Pipe()
	reports, out := io.Pipe()
	t.Cleanup(func() { _, _ = orders.Close(), reports.Close() })
	stage := newStage(role{}, in, out, func() {})
	return stage, json.NewEncoder(orders), json.NewDecoder(reports)
}

// reading returns the reports that come, and a function that waits for the next
// one, which must be of a kind.
func reading(t *testing.T, reports *json.Decoder) (told <-chan report, next func(want string) report) {
	c := make(chan report)
	go func() {
		for {
			var r report
			if reports.Decode(&r) != nil {
				return
			}
			c <- r
		}
	}()
	return c, func(want string) report {
		t.Helper()
		select {
		case r := <-c:
			if r.Kind != want {
				t.Fatalf("report is %+v, want %s", r, want)
			}
			return r
		case <-time.After(20 * time.Second):
			t.Fatalf("no report, want %s", want)
			return report{}
		}
	}
}

func TestATransactionThatWasStoppedHasNoDeadline(t *testing.T) {
	for _, at := range []Point{InHand, AfterWrites} {
		t.Run(string(at), func(t *testing.T) {
			stage, orders, reports := testStage(t)
			_, next := reading(t, reports)
			send(t, orders, at)
			armed(t, stage)
			ctx, cancel := context.WithCancel(t.Context())
			go func() {
				as := []epoch.Advance{{Partition: epoch.Partition{Number: 2}, From: 7, To: 9}}
				_ = Fenced(plainSink{}, stage).Commit(ctx, as, func(ctx context.Context, _ int) error {
					cancel()
					return ctx.Err()
				})
			}()
			if r := next(reportReached); r.Text != "2/7" || r.Point != at {
				t.Errorf("it stands at %+v", r)
			}
			send(t, orders, "")
			if r := next(reportEnded); r.Text != Committed {
				t.Errorf("it ended as %+v", r)
			}
		})
	}
}

func TestAnOrderToContinueIsForWhoHasSaidWhereItStands(t *testing.T) {
	stage, orders, reports := testStage(t)
	told, next := reading(t, reports)
	var ended sync.WaitGroup
	stand := func(subject string) { // as if the order had come twice
		send(t, orders, InHand)
		armed(t, stage)
		cue := stage.Cue(subject, InHand)
		ended.Go(func() { cue.Reach(InHand) })
	}
	stand("0/1")
	next(reportReached)
	stand("0/2")
	select {
	case r := <-told:
		t.Errorf("%+v while another one stands there", r)
	case <-time.After(50 * time.Millisecond): // nothing is to be waited for: it must not come
	}
	send(t, orders, "")
	if second := next(reportReached); second.Text != "0/2" {
		t.Errorf("%+v stands there", second)
	}
	send(t, orders, "")
	ended.Wait()
}

func TestOneOfTwoTransactionsThatBeginWithAnOrderIsStopped(t *testing.T) {
	stage, orders, reports := testStage(t)
	_, next := reading(t, reports)
	send(t, orders, AfterWrites)
	armed(t, stage)
	first, second := stage.Cue("0/1", InHand, AfterWrites), stage.Cue("0/2", InHand, AfterWrites)
	first.Reach(InHand) // which is not the point
	go first.Reach(AfterWrites)
	if r := next(reportReached); r.Text != "0/1" {
		t.Errorf("%+v stands there", r)
	}
	second.Reach(AfterWrites) // would block
	send(t, orders, "")
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

func TestAPointOfATransactionIsPassedByOthers(t *testing.T) {
	stage, orders, reports := testStage(t)
	_, next := reading(t, reports)
	send(t, orders, "half way")
	armed(t, stage)
	sink := FencedAt(plainSink{}, stage, func(a epoch.Advance) Scene {
		s := Scene{Subject: Subject(0, int64(a.From))}
		if a.From == 2 {
			s.Before = "half way"
		}
		return s
	})
	go func() {
		for from := range epoch.Offset(3) {
			_ = sink.Commit(t.Context(), []epoch.Advance{{From: from, To: from + 1}}, func(context.Context, int) error { return nil })
		}
	}()
	if r := next(reportReached); r.Text != "0/2" || r.Point != "half way" {
		t.Errorf("it stands at %+v", r)
	}
	send(t, orders, "")
	if r := next(reportEnded); r.Text != Committed {
		t.Errorf("it ended as %+v", r)
	}
}

func TestWhatAnItemRefusesIsStale(t *testing.T) {
	stage, _, reports := testStage(t)
	_, next := reading(t, reports)
	refused := &epoch.LowEpochError{Epoch: 3, Seen: 4}
	go func() { _ = stage.Cue("0/1").Done(refused) }()
	if r := next(reportEnded); r.Text != Stale {
		t.Errorf("it ended as %+v", r)
	}
}
