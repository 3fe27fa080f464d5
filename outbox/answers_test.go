package outbox_test

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/epochfence/epochfence/internal/suites/bubble"
	"github.com/epochfence/epochfence/outbox"
)

func TestAnswersAreRecordedInTheTransactionThatDeletes(t *testing.T) {
	o := fast
	fails := 3
	o.OnAnswer = func(_ context.Context, t *tx, e outbox.Sent, a outbox.Answer) error {
		t.note(fmt.Sprintf("%s: %d %s %s", e.Body, a.Status, a.Header.Get("X-Answer"), a.Body))
		if string(e.Body) == "2" && fails > 0 {
			fails--
			return errTest
		}
		return nil
	}
	r := newRig(t, o, func(*http.Request, string) int { return http.StatusAccepted })
	r.add("a 1", "b 2", "c 3")
	r.relay(1)
	r.awaitEmpty()
	if got := r.db.notes(); len(got) != 3 || !slices.Contains(got, "2: 202 yes answer to 2") {
		t.Errorf("noted %q", got)
	}
	if got := r.received(); len(got) != 3 {
		t.Errorf("received %q: an answer that OnAnswer could not take is tried again, not the request", got)
	}
}

func TestAnAnswerThatNobodyCanTakeHoldsUpOnlyItsKey(t *testing.T) {
	o := fast
	o.OnAnswer = func(_ context.Context, t *tx, e outbox.Sent, _ outbox.Answer) error {
		t.note(string(e.Body))
		switch e.Key {
		case "bad":
			return errTest
		case "worse":
			panic("oh")
		}
		return nil
	}
	r := newRig(t, o, ok)
	for i := range 30 {
		r.add(fmt.Sprintf("good %d", i), "bad x", fmt.Sprintf("- %d", i), "worse x")
	}
	r.relay(1)
	r.await("the others delivered", func() bool { return len(r.db.left()) == 60 })
	if slices.Contains(r.db.notes(), "x") {
		t.Error("what a failed OnAnswer wrote was committed")
	}
}

// With transactions that take longer than the pause before an answer is tried again,
// those that fail come back before all of them have been found, one at a time.
func TestManyAnswersThatNobodyCanTakeDoNotHoldUpAGoodOne(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var o outbox.Options[*tx]
		o.OnAnswer = func(_ context.Context, _ *tx, e outbox.Sent, _ outbox.Answer) error {
			if e.Key == "good" {
				return nil
			}
			return errTest
		}
		s := newStorm(t, 1, odds{request: time.Millisecond, transaction: 2 * time.Second}, o)
		const bad = 40
		keys := make([]string, bad) // of none
		s.add(slices.Insert(keys, bad/2, "good")...)
		s.relay()
		for _, which := range []string{"first", "second"} {
			<-time.After(time.Hour)
			if n := len(s.db.left()); n != bad {
				t.Errorf("an hour after the %s good one was added %d entries are left, want %d", which, n, bad)
			}
			s.add("good")
		}
	})
}

func TestAFailureThatOnlyTheCommitShowsIsFoundAndHoldsUpOnlyItsEntry(t *testing.T) {
	o := fast
	o.Concurrency = 32
	o.OnAnswer = func(_ context.Context, t *tx, e outbox.Sent, _ outbox.Answer) error {
		t.note(e.Key)
		return nil
	}
	r := newRig(t, o, ok)
	var entries []string
	for i := range 20 {
		entries = append(entries, fmt.Sprintf("k%d %d", i, i))
	}
	r.add(append(entries, "bad x")...)
	run := &claimThatFails{claim: &claim{db: r.db, epoch: 1, applied: make(chan struct{}, 1)}}
	run.hold = func() { // so that all that is answered meanwhile comes to one transaction
		r.await("all received", func() bool { return len(r.received()) == 21 })
		<-time.After(50 * time.Millisecond)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); r.box.Relay(ctx, run) }()
	r.await("the others delivered", func() bool { return len(r.db.left()) == 1 })
	cancel()
	<-done
}

// claimThatFails refuses to commit what was noted of the key "bad".
type claimThatFails struct {
	*claim
	calls int
	hold  func()
}

func (c *claimThatFails) Do(ctx context.Context, apply func(context.Context, *tx) error) error {
	if c.calls++; c.calls == 2 { // the first settlement
		c.hold()
	}
	var noted []string
	return c.db.do(func(t *tx) error {
		before := len(t.list)
		if err := apply(ctx, t); err != nil {
			return err
		}
		noted = t.list[before:]
		if slices.Contains(noted, "bad") {
			return errTest
		}
		return nil
	})
}

func TestARefusalForGoodGoesToOnRefused(t *testing.T) {
	for _, status := range []int{301, 400, 402, 404, 409, 412, 422} {
		o := fast
		o.OnRefused = func(_ context.Context, t *tx, e outbox.Sent, a outbox.Answer) error {
			t.note(fmt.Sprintf("%s refused: %d", e.Body, a.Status))
			return nil
		}
		r := newRig(t, o, func(_ *http.Request, body string) int {
			if body == "1" {
				return status
			}
			return http.StatusOK
		})
		r.add("a 1", "a 2")
		r.relay(1)
		r.awaitEmpty()
		r.wantReceived("1", "2")
		if got := r.db.notes(); !slices.Equal(got, []string{fmt.Sprintf("1 refused: %d", status)}) {
			t.Errorf("noted %q", got)
		}
	}
}

func TestARefusalThatNobodyTakesStaysIsReportedAndHoldsUpItsKey(t *testing.T) {
	r := newRig(t, fast, func(_ *http.Request, body string) int {
		if body == "1" {
			return http.StatusBadRequest
		}
		return http.StatusOK
	})
	r.add("a 1", "a 2", "b 3")
	r.relay(1)
	r.await("three tries, and the other key delivered", func() bool {
		return len(r.db.left()) == 2 && len(slices.DeleteFunc(r.received(), func(s string) bool { return s != "1" })) >= 3
	})
	if left := r.db.left(); len(left) != 2 || slices.Contains(r.received(), "2") {
		t.Errorf("left %v, received %q", left, r.received())
	}
	if !slices.ContainsFunc(r.observed(), func(e outbox.Event) bool {
		return e.Kind == outbox.Refused && e.Status == 400 && e.Err != nil && string(e.Body) == "1"
	}) {
		t.Errorf("observed %+v", r.observed())
	}
}
