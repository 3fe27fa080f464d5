package show

import (
	"context"
	"encoding/json"
	"io"
	"testing"
	"time"

	"github.com/epochfence/epochfence/epoch"
)

// slowClaims is a sink whose claims last until they are let go.
type slowClaims struct {
	epoch.Sink[int]
	began, claimed chan struct{}
}

func (s *slowClaims) Claim(context.Context, epoch.Fence, epoch.Claim) (epoch.Fence, error) {
	s.began <- struct{}{}
	<-s.claimed
	return epoch.Fence{}, nil
}

func (s *slowClaims) Commit(ctx context.Context, _ []epoch.Advance, calls ...func(context.Context, int) error) error {
	for _, call := range calls {
		if err := call(ctx, 0); err != nil {
			return err
		}
	}
	return nil
}

func (s *slowClaims) CommitHeld(ctx context.Context, _ epoch.Hold, apply func(context.Context, int) error) error {
	return apply(ctx, 0)
}

// testStage returns a stage, and the ends that its parent has.
func testStage(t *testing.T) (*Stage, *json.Encoder, *json.Decoder) {
	t.Helper()
	in, orders := io.Pipe()
	reports, out := io.Pipe()
	t.Cleanup(func() { _, _ = orders.Close(), reports.Close() })
	go func() { _, _ = orders.Write([]byte("{}\n")) }()
	stage, err := newStage(in, out, func() {})
	if err != nil {
		t.Fatal(err)
	}
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

func TestAWorkerIsNotFrozenWhileAClaimOfItsHoldsTheWriteLock(t *testing.T) {
	stage, orders, reports := testStage(t)
	inner := &slowClaims{began: make(chan struct{}), claimed: make(chan struct{})}
	sink := Fenced(inner, stage)
	told, next := reading(t, reports)

	if err := orders.Encode(order{Do: orderStopAt, Point: Unlocked}); err != nil {
		t.Fatal(err)
	}
	next(reportArmed)
	go func() { _, _ = sink.Claim(t.Context(), epoch.Fence{}, epoch.Claim{}) }()
	<-inner.began
	go func() {
		_ = sink.Commit(t.Context(), []epoch.Advance{{To: 3}}, func(context.Context, int) error { return nil })
	}()
	select {
	case r := <-told:
		t.Fatalf("report is %s while a claim is under way", r.Kind)
	case <-time.After(50 * time.Millisecond): // nothing is to be waited for: it must not come
	}
	inner.claimed <- struct{}{}
	next(reportReached)
	if err := orders.Encode(order{Do: orderGo}); err != nil {
		t.Fatal(err)
	}
	next(reportApplied)
}
