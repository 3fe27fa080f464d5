package outbox_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/outbox"
)

func (r *rig) delivered(run *running) *running {
	r.Helper()
	r.awaitEmpty()
	return run
}

// after waits for one event.
func (run *running) after(events <-chan outbox.Event) *running {
	select {
	case <-events:
	case <-time.After(20 * time.Second):
	}
	return run
}

// under is a network that knows what is under way in it.
type under struct {
	http.RoundTripper
	way atomic.Int64
}

func (u *under) RoundTrip(req *http.Request) (*http.Response, error) {
	u.way.Add(1)
	defer u.way.Add(-1)
	res, err := u.RoundTripper.RoundTrip(req)
	if err != nil {
		time.AfterFunc(50*time.Millisecond, func() { u.way.Add(-1) }) // it takes its time to end
		u.way.Add(1)
		for tick := time.NewTicker(time.Millisecond); u.way.Load() > 1; {
			<-tick.C
		}
	}
	return res, err
}

func TestTheRelayReturnsAfterItsRequestsHaveEnded(t *testing.T) {
	net := &under{}
	r, _ := fencedRig(t, fast, func(http.RoundTripper) http.RoundTripper { net.RoundTripper = http.DefaultTransport; return net })
	r.url = rawReceiver(t, func(io.Writer) {})
	r.add("a 1")
	run := r.relay(1)
	r.await("a request", func() bool { return net.way.Load() > 0 })
	r.stop(run)
	if n := net.way.Load(); n > 0 {
		t.Errorf("%d requests are under way after the relay has returned", n)
	}
}

func TestNobodyIsToldOfTheAnswerToAnEntryThatAPersonHasDeleted(t *testing.T) {
	o := fast
	o.OnAnswer = func(_ context.Context, t *tx, e outbox.Sent, _ outbox.Answer) error {
		t.note(string(e.Body))
		return nil
	}
	var r *rig
	r = newRig(t, o, func(_ *http.Request, body string) int {
		if body == "1" {
			_ = r.db.do(func(t *tx) error { delete(t.rows, 1); return nil })
		}
		return http.StatusOK
	})
	r.add("a 1", "a 2")
	r.relay(1)
	r.awaitEmpty()
	r.await("the answer to 2", func() bool { return len(r.db.notes()) > 0 })
	if got := r.db.notes(); !slices.Equal(got, []string{"2"}) {
		t.Errorf("noted %q", got)
	}
}

// What fails in OnAnswer is the entry's, whatever the error says.
func TestATransientFailureOfOnAnswerHoldsUpOnlyItsKey(t *testing.T) {
	o := outbox.Options[*tx]{RetryMin: time.Hour, RetryMax: time.Hour}
	o.OnAnswer = func(_ context.Context, _ *tx, e outbox.Sent, _ outbox.Answer) error {
		if e.Key == "bad" {
			return fmt.Errorf("%w: a deadlock", epoch.ErrTransient)
		}
		return nil
	}
	r := newRig(t, o, ok)
	r.add("bad 1", "good 2")
	run := r.relay(1)
	r.await("the good one delivered", func() bool { return len(r.db.left()) == 1 })
	r.add("good 3")
	run.wake()
	r.await("the next one delivered", func() bool { return len(r.received()) == 3 && len(r.db.left()) == 1 })
}

func TestADatabaseThatFailsIsGivenTime(t *testing.T) {
	r := newRig(t, outbox.Options[*tx]{RetryMin: time.Hour, RetryMax: time.Hour}, ok)
	r.add("a 1")
	before := r.db.begun
	failed := make(chan struct{})
	r.db.fail = func(n int) error {
		if n == before+1 {
			close(failed)
		}
		return fmt.Errorf("%w: away", epoch.ErrTransient)
	}
	run := r.relay(1)
	<-failed
	run.wake()
	time.AfterFunc(50*time.Millisecond, run.end)
	r.over(run)
	if r.db.begun != before+1 {
		t.Errorf("%d transactions", r.db.begun-before)
	}
}

func TestAnswersThatNobodyCanTakeAreBounded(t *testing.T) {
	o := outbox.Options[*tx]{RetryMin: time.Hour, RetryMax: time.Hour, Concurrency: 4}
	o.OnAnswer = func(context.Context, *tx, outbox.Sent, outbox.Answer) error { return errTest }
	r := newRig(t, o, ok)
	for i := range 300 {
		r.add(fmt.Sprintf("- %d", i))
	}
	run := r.relay(1)
	r.await("64 answers", func() bool { return len(r.observed()) >= 64 })
	time.AfterFunc(100*time.Millisecond, run.end)
	r.over(run)
	if n := len(r.received()); n > 64+64+4 { // waiting, in a transaction, under way
		t.Errorf("%d requests were sent and none could be settled", n)
	}
}

func TestAnEntryThatCannotBeSentStaysAndIsReported(t *testing.T) {
	o := fast
	o.OnRefused = func(_ context.Context, t *tx, e outbox.Sent, _ outbox.Answer) error {
		t.note("refused " + string(e.Body))
		return nil
	}
	r := newRig(t, o, ok)
	r.add("a 1", "b 2")
	err := r.db.do(func(t *tx) error {
		row := t.rows[1]
		row.Scope = "changed by an operator\n"
		t.rows[1] = row
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	r.relay(1)
	r.await("two reports and the other one delivered", func() bool {
		return len(r.db.left()) == 1 && len(slices.DeleteFunc(r.observed(), func(e outbox.Event) bool { return e.Kind != outbox.Refused })) >= 2
	})
	if got := r.db.notes(); len(got) > 0 {
		t.Errorf("noted %q although there was no answer", got)
	}
}

func TestAPasswordInAURLIsNotLogged(t *testing.T) {
	var log bytes.Buffer
	r := newRig(t, fast, ok)
	events := make(chan outbox.Event, 1)
	box, err := outbox.New(table{}, outbox.Options[*tx]{
		RetryMin: time.Hour, RetryMax: time.Hour,
		Logger:  slog.New(slog.NewTextHandler(&log, nil)),
		Observe: func(e outbox.Event) { events <- e },
	})
	if err != nil {
		t.Fatal(err)
	}
	r.box = box
	r.url = strings.Replace(newServer(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusForbidden)
	})), "://", "://user:secret@", 1)
	r.add("a 1")
	r.stop(r.relay(1).after(events))
	if text := log.String(); strings.Contains(text, "secret") || !strings.Contains(text, "403") {
		t.Errorf("the log says\n%s", text)
	}
}

func TestWhatIsKnownOfFailingKeysIsBounded(t *testing.T) {
	const known, extra = 4096, 500
	r := newRig(t, outbox.Options[*tx]{RetryMin: time.Hour, RetryMax: time.Hour, Concurrency: 64}, func(*http.Request, string) int {
		return http.StatusServiceUnavailable
	})
	var all []string
	for i := range known + extra {
		all = append(all, fmt.Sprintf("k%d %d", i, i))
	}
	r.add(all...)
	run := r.relay(1)
	r.await("as many tries as keys are known", func() bool { return len(r.observed()) >= known })
	time.AfterFunc(200*time.Millisecond, run.end)
	r.over(run)
	if n := len(r.received()); n > known+64 {
		t.Errorf("%d keys were tried and failed, want no more to be read after %d", n, known)
	}
}

// A panic of Observe ends the relay, but not the transaction under way: what that has
// settled is told.
func TestAPanicOfObserveDoesNotHideWhatIsSettledMeanwhile(t *testing.T) {
	settled := make(chan struct{})
	r := newRig(t, fast, func(_ *http.Request, body string) int {
		if body == "1" {
			return http.StatusOK
		}
		<-settled
		return http.StatusServiceUnavailable
	})
	panics := make(chan struct{})
	var delivered []int64
	box, err := outbox.New(table{}, outbox.Options[*tx]{
		Logger: slog.New(slog.DiscardHandler),
		Observe: func(e outbox.Event) {
			if e.Kind == outbox.Retrying {
				close(panics)
				panic("of Observe")
			}
			delivered = append(delivered, e.ID)
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	r.box = box
	r.add("a 1", "b 2")
	run := r.relayBySteps("of Observe", nil, func(_ *steps, n int) {
		if n == 2 { // it has deleted entry 1, and the relay does not know yet
			close(settled)
			<-panics
		}
	})
	r.over(run.running)
	if left := r.db.left(); len(left) != 1 || !slices.Equal(delivered, []int64{1}) {
		t.Errorf("%d entries are left, want one; told of entries %v, want 1", len(left), delivered)
	}
}

// A goroutine may end without a return or a panic, as one does that calls t.Fatal.
func TestARelayWhoseDoNeverReturnsStillReturnsWithItsClaim(t *testing.T) {
	r := newRig(t, fast, ok)
	r.add("a 1")
	ends := make(chan struct{})
	run := r.relayBySteps(nil, func(_ *steps, n int) {
		if n == 1 {
			close(ends)
			runtime.Goexit()
		}
	}, nil)
	<-ends
	r.stop(run.running)
}
