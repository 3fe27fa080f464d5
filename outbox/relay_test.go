package outbox_test

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/outbox"
	"github.com/epochfence/epochfence/outbox/httpfence"
)

func ok(*http.Request, string) int { return http.StatusOK }

func TestEntriesThatAreThereAndThoseThatComeAreSentAndDeleted(t *testing.T) {
	r := newRig(t, fast, ok)
	r.add("a 1", "a 2")
	run := r.relay(7)
	r.awaitEmpty()
	r.add("a 3")
	run.wake()
	r.awaitEmpty()
	r.wantReceived("1", "2", "3")
	for i, c := range r.calls {
		if c.Epoch != 7 || c.Scope != "scope/a" || len(c.Key) < 20 || i > 0 && c.Key == r.calls[i-1].Key {
			t.Errorf("call %+v", c)
		}
	}
}

func TestEntriesOfOneKeyComeInOrderAlsoThroughFailures(t *testing.T) {
	var mu sync.Mutex
	inside := map[string]bool{}
	n := 0
	r := newRig(t, fast, func(_ *http.Request, body string) int {
		key := body[:1]
		mu.Lock()
		if inside[key] {
			t.Errorf("two requests of key %s at a time", key)
		}
		inside[key] = true
		n++
		fail := n%3 == 0
		mu.Unlock()
		defer func() { mu.Lock(); inside[key] = false; mu.Unlock() }()
		if fail {
			return http.StatusServiceUnavailable
		}
		return http.StatusOK
	})
	for i := range 60 {
		r.add(fmt.Sprintf("a a%02d", i), fmt.Sprintf("b b%02d", i), fmt.Sprintf("c c%02d", i))
	}
	r.relay(1)
	r.awaitEmpty()
	for _, key := range []string{"a", "b", "c"} {
		got := slices.DeleteFunc(r.received(), func(s string) bool { return s[:1] != key })
		if !slices.IsSorted(got) {
			t.Errorf("key %s came as %q", key, got)
		}
		if n := len(slices.Compact(got)); n != 60 {
			t.Errorf("key %s: %d of 60 came", key, n)
		}
	}
}

func TestAFailingKeyHoldsUpOnlyItself(t *testing.T) {
	var healed atomic.Bool
	r := newRig(t, fast, func(_ *http.Request, body string) int {
		if strings.HasPrefix(body, "bad") && !healed.Load() {
			return http.StatusInternalServerError
		}
		return http.StatusOK
	})
	for i := range 200 { // more than are read at a time
		r.add(fmt.Sprintf("bad bad%03d", i))
	}
	for i := range 20 {
		r.add(fmt.Sprintf("good good%d", i), fmt.Sprintf("- free%d", i))
	}
	r.relay(1)
	r.await("all but the bad key delivered", func() bool { return len(r.db.left()) == 200 })
	r.add("good late") // and nobody wakes the relay: the next retry's transaction does not look
	healed.Store(true)
	r.await("the bad key delivered", func() bool { return len(r.db.left()) == 1 })
	bad := slices.DeleteFunc(r.received(), func(s string) bool { return !strings.HasPrefix(s, "bad") })
	if bad = slices.Compact(bad); len(bad) != 200 || !slices.IsSorted(bad) {
		t.Errorf("the bad key came as %q", bad)
	}
}

func TestEntriesWithoutAKeyDoNotWaitForEachOther(t *testing.T) {
	hold := make(chan struct{})
	r := newRig(t, fast, func(_ *http.Request, body string) int {
		if body == "slow" {
			<-hold
		}
		return http.StatusOK
	})
	r.add("- slow", "- quick")
	r.relay(1)
	r.await("the quick one delivered", func() bool { return len(r.db.left()) == 1 })
	close(hold)
	r.awaitEmpty()
}

func TestNoMoreRequestsAreUnderWayThanConcurrencyAllows(t *testing.T) {
	var mu sync.Mutex
	var inside, most int
	enters := func(by int) int {
		mu.Lock()
		defer mu.Unlock()
		inside += by
		most = max(most, inside)
		return inside
	}
	o := fast
	o.Concurrency = 3
	hold := make(chan struct{})
	r := newRig(t, o, func(*http.Request, string) int {
		enters(1)
		defer enters(-1)
		<-hold
		return http.StatusOK
	})
	for i := range 50 {
		r.add(fmt.Sprintf("- %d", i))
	}
	r.relay(1)
	r.await("three requests", func() bool { return enters(0) == 3 })
	close(hold)
	r.awaitEmpty()
	if most != 3 {
		t.Errorf("up to %d at a time", most)
	}
}

func TestTheNextOfAKeyIsNotSentBeforeTheDeletionOfTheLastHasCommitted(t *testing.T) {
	r := newRig(t, fast, ok)
	r.add("a 1", "a 2")
	r.db.fail = func(n int) error {
		got := r.received()
		if n == 4 && len(got) == 1 {
			return fmt.Errorf("%w: the database is busy", epoch.ErrTransient)
		}
		if slices.Contains(got, "2") && !slices.Contains(got, "1") {
			t.Error("2 before 1")
		}
		return nil
	}
	r.relay(1)
	r.awaitEmpty()
	r.wantReceived("1", "2")
}

func TestAfterACrashBetweenTheAnswerAndTheDeletionTheSameComesUnderTheNextEpoch(t *testing.T) {
	r := newRig(t, fast, ok)
	r.add("a 1", "a 2")
	r.db.fail = func(int) error {
		r.mu.Lock()
		defer r.mu.Unlock()
		if len(r.got) == 1 {
			return &epoch.StaleError{Partition: orders} // it does not commit, and the claim is over
		}
		return nil
	}
	first := r.relay(4)
	r.over(first)
	r.db.fail = nil
	r.relay(5)
	r.awaitEmpty()
	r.wantReceived("1", "1", "2")
	if a, b := r.calls[0], r.calls[1]; a.Key != b.Key || a.Epoch != 4 || b.Epoch != 5 {
		t.Errorf("sent as %+v and %+v", a, b)
	}
}

func TestWhatAsksForAnotherTryGetsOne(t *testing.T) {
	for _, status := range []int{0, 408, 425, 429, 500, 503} {
		var n atomic.Int64
		r := newRig(t, fast, func(*http.Request, string) int {
			if n.Add(1) < 4 {
				return status
			}
			return http.StatusOK
		})
		r.add("a 1")
		r.relay(1)
		r.awaitEmpty()
		if n.Load() < 4 {
			t.Errorf("status %d: %d tries", status, n.Load())
		}
		delivered := func(e outbox.Event) bool { return e.Kind == outbox.Delivered }
		r.await("the delivery is told", func() bool { return slices.ContainsFunc(r.observed(), delivered) })
		if last := r.observed()[len(r.observed())-1]; !delivered(last) || status != 0 && last.Attempt != 4 {
			t.Errorf("status %d: %+v", status, last)
		}
	}
}

func TestAReceiverThatHasSeenAHigherEpochEndsTheRelay(t *testing.T) {
	store := httpfence.NewMemory()
	fence := httpfence.Handler(store, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}), httpfence.Options{})
	r := newRig(t, fast, ok)
	srv := newServer(t, fence)
	r.url = srv
	r.add("a 1")
	newer := r.relay(9)
	r.awaitEmpty()
	r.stop(newer)
	for i := range 20 {
		r.add(fmt.Sprintf("a again%d", i), fmt.Sprintf("b other%d", i))
	}
	zombie := r.relay(8)
	r.over(zombie)
	if left := r.db.left(); len(left) < 20 {
		t.Errorf("%d entries left: those of key a cannot have been delivered", len(left))
	}
	if !slices.ContainsFunc(r.observed(), func(e outbox.Event) bool {
		var stale *httpfence.StaleError
		return e.Kind == outbox.Fenced && errors.As(e.Err, &stale) && stale.Highest == 9 && stale.Epoch == 8
	}) {
		t.Errorf("observed %+v", r.observed())
	}
	r.relay(10)
	r.awaitEmpty()
}

func TestTheEndOfTheClaimEndsTheRequestsUnderWay(t *testing.T) {
	begun := make(chan struct{}, 1)
	hold := make(chan struct{})
	r := newRig(t, outbox.Options[*tx]{RequestTimeout: time.Hour}, func(*http.Request, string) int {
		begun <- struct{}{}
		<-hold
		return http.StatusOK
	})
	defer close(hold)
	r.add("a 1")
	run := r.relay(1)
	<-begun
	r.stop(run)
	if len(r.db.left()) != 1 {
		t.Error("the entry is gone")
	}
}

func TestARequestIsBoundedInTime(t *testing.T) {
	o := fast
	o.RequestTimeout = 20 * time.Millisecond
	var n atomic.Int64
	hold := make(chan struct{})
	r := newRig(t, o, func(*http.Request, string) int {
		if n.Add(1) == 1 {
			<-hold
		}
		return http.StatusOK
	})
	defer close(hold)
	r.add("a 1")
	r.relay(1)
	r.awaitEmpty()
}

func TestALostClaimDeletesNothingAndEndsTheRelay(t *testing.T) {
	r := newRig(t, fast, ok)
	r.add("a 1")
	hold := make(chan struct{})
	run := &claim{db: r.db, epoch: 1, applied: make(chan struct{}, 1)}
	r.db.fail = func(n int) error {
		if n == 2 { // after the read
			run.lose()
			close(hold)
		}
		return nil
	}
	done := make(chan struct{})
	go func() { defer close(done); r.box.Relay(t.Context(), run) }()
	<-hold
	<-done
	if len(r.db.left()) != 1 {
		t.Error("a lost claim has deleted an entry")
	}
}

func TestTheDatabaseMayFailForAWhile(t *testing.T) {
	r := newRig(t, fast, ok)
	r.add("a 1", "a 2", "b 3")
	r.db.fail = func(n int) error {
		if n%3 != 0 {
			return fmt.Errorf("%w: away", epoch.ErrTransient)
		}
		return nil
	}
	r.relay(1)
	r.awaitEmpty()
	if got := r.received(); len(got) != 3 {
		t.Errorf("received %q: an answer is not forgotten because the database failed", got)
	}
}

func TestAnEntryThatAPersonDeletedIsNotMissed(t *testing.T) {
	var away atomic.Bool
	r := newRig(t, fast, func(_ *http.Request, body string) int {
		if body == "1" {
			away.Store(true)
			return http.StatusInternalServerError
		}
		return http.StatusOK
	})
	r.add("a 1", "a 2", "- 1")
	r.relay(1)
	r.await("a failure", away.Load)
	err := r.db.do(func(t *tx) error {
		delete(t.rows, 1)
		delete(t.rows, 3)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	r.awaitEmpty()
	if got := r.received(); !slices.Contains(got, "2") {
		t.Errorf("received %q", got)
	}
}

func TestOptionsThatAreWrongAreRefusedWithTheReason(t *testing.T) {
	for want, o := range map[string]outbox.Options[*tx]{
		"Concurrency":    {Concurrency: -1},
		"MaxAnswer":      {MaxAnswer: -1},
		"RequestTimeout": {RequestTimeout: -1},
		"RetryMin":       {RetryMin: time.Minute, RetryMax: time.Second},
		"RetryMax":       {RetryMax: 100 * time.Hour},
	} {
		if _, err := outbox.New(table{}, o); err == nil || !strings.Contains(err.Error(), "Options."+want) {
			t.Errorf("%s: %v", want, err)
		}
	}
	if _, err := outbox.New[*tx](nil, outbox.Options[*tx]{}); err == nil {
		t.Error("a box without a store")
	}
}

// The transactions of a partition's messages may take their time. What has been
// read is sent meanwhile, and settled in one turn.
func TestRequestsContinueWhileATransactionWaits(t *testing.T) {
	const entries = 60
	o := fast
	o.Concurrency = 2
	r := newRig(t, o, ok)
	for i := range entries {
		r.add(fmt.Sprintf("- %d", i))
	}
	run := r.relayBySteps(nil, func(_ *steps, n int) {
		if n == 2 { // the first settlement
			r.await("all are sent", func() bool { return len(r.received()) == entries })
		}
	}, nil)
	r.awaitEmpty()
	r.stop(run.running)
	if n := run.calls; n > 6 {
		t.Errorf("%d transactions for %d entries", n, entries)
	}
}

// The answers that a transaction takes with it make room when it begins, not when
// it ends.
func TestRequestsGoOnWhenATransactionTakesTheAnswersThatHeldThemUp(t *testing.T) {
	const held = 64 // so many answers hold up requests
	o := fast
	o.Concurrency = held // so that as many entries again are read before the first is answered
	r := newRig(t, o, ok)
	for i := range 3 * held {
		r.add(fmt.Sprintf("- %d", i))
	}
	run := r.relayBySteps(nil, func(_ *steps, n int) {
		switch n {
		case 2:
			r.await("as many answers as hold up requests", func() bool { return len(r.received()) == held })
			<-time.After(100 * time.Millisecond) // in which the last of them reach the relay
		case 3: // it takes them
			r.await("a request goes out", func() bool { return len(r.received()) > held })
		}
	}, nil)
	r.awaitEmpty()
	r.stop(run.running)
}

// What is applied while the relay looks for entries may add some that it has
// not seen.
func TestEntriesThatAreAddedWhileTheRelayLooksAreNotMissed(t *testing.T) {
	r := newRig(t, fast, ok)
	r.relayBySteps(nil, nil, func(run *steps, n int) {
		if n == 1 {
			r.add("a 1")
			run.applied <- struct{}{}
			r.await("the relay heard of it", func() bool { return len(run.applied) == 0 })
		}
	})
	r.await("the entry is received", func() bool { return len(r.received()) == 1 })
	r.awaitEmpty()
}

// A claim may end while its last transaction commits: what that has settled is
// told.
func TestTheLastTransactionOfAClaimIsReported(t *testing.T) {
	r := newRig(t, fast, ok)
	r.add("a 1")
	run := r.relayBySteps(nil, nil, func(run *steps, n int) {
		if n == 2 {
			run.end()
			<-time.After(20 * time.Millisecond) // in which the relay hears of it first
		}
	})
	r.over(run.running)
	if got := r.observed(); len(got) != 1 || got[0].Kind != outbox.Delivered {
		t.Errorf("observed of %+v", got)
	}
}
