package show

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
)

// receiver answers each request with a status, if the request's context allows.
type receiver int

func (status receiver) RoundTrip(r *http.Request) (*http.Response, error) {
	if err := r.Context().Err(); err != nil {
		return nil, err
	}
	return &http.Response{StatusCode: int(status), Body: http.NoBody, Request: r}, nil
}

// partition3 is a claim of partition 3.
type partition3 struct{ consumer.Background[int] }

func (partition3) Partition() epoch.Partition { return epoch.Partition{Number: 3} }

// request sends one as a relay of partition 3 does, in a context that ends once
// ended is closed.
func request(t *testing.T, stage *Stage, status int, ended <-chan struct{}) {
	t.Helper()
	client := &http.Client{Transport: Sending(receiver(status), stage)}
	relay := Relaying(func(ctx context.Context, _ consumer.Background[int]) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		go func() {
			<-ended
			cancel()
		}()
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://127.0.0.1/", http.NoBody)
		if err != nil {
			t.Error(err)
			return
		}
		r.Header.Set("Idempotency-Key", `"payment-7"`)
		if answer, err := client.Do(r); err == nil {
			_ = answer.Body.Close()
		}
	})
	relay(t.Context(), partition3{})
}

func send(t *testing.T, orders *json.Encoder, o order) {
	t.Helper()
	if err := orders.Encode(o); err != nil {
		t.Fatal(err)
	}
}

func TestARequestThatWasStoppedReachesTheReceiverAlthoughItsContextHasEnded(t *testing.T) {
	stage, orders, reports := testStage(t)
	_, next := reading(t, reports)
	send(t, orders, order{Do: orderStopAt, Point: BeforeSend})
	next(reportArmed)
	ended, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		request(t, stage, http.StatusPreconditionFailed, ended)
	}()
	r := next(reportReached)
	if r.Point != BeforeSend || r.Subject != "payment-7" || len(r.Work) != 1 || r.Work[0].Partition != 3 {
		t.Errorf("it stands at %+v", r)
	}
	close(ended)
	send(t, orders, order{Do: orderGo})
	if r := next(reportRefused); r.Subject != "payment-7" {
		t.Errorf("refused: %+v", r)
	}
	<-done
}

func TestARequestThatIsRefusedAsStaleIsReportedAndOthersAreNot(t *testing.T) {
	stage, _, reports := testStage(t)
	told, next := reading(t, reports)
	never := make(chan struct{})
	defer close(never)
	request(t, stage, http.StatusCreated, never)
	go request(t, stage, http.StatusPreconditionFailed, never)
	next(reportRefused)
	select {
	case r := <-told:
		t.Errorf("report %+v", r)
	case <-time.After(50 * time.Millisecond): // nothing is to be waited for: it must not come
	}
}

func TestARelayIsStoppedAfterAnAnswerThatIsNotYetRecorded(t *testing.T) {
	stage, orders, reports := testStage(t)
	_, next := reading(t, reports)
	sink := Fenced(&slowClaims{}, stage)
	commit := func(ctx context.Context) {
		_ = epoch.CommitHeld(ctx, sink, epoch.Hold{Partition: epoch.Partition{Number: 3}}, func(ctx context.Context, _ int) error { return ctx.Err() })
	}
	send(t, orders, order{Do: orderStopAt, Point: Answered})
	next(reportArmed)
	go commit(t.Context()) // nothing was answered
	next(reportApplied)

	never := make(chan struct{})
	defer close(never)
	request(t, stage, http.StatusCreated, never)
	ctx, cancel := context.WithCancel(t.Context())
	go commit(ctx)
	if r := next(reportReached); r.Point != Answered || r.Subject != "payment-7" {
		t.Errorf("it stands at %+v", r)
	}
	cancel()
	send(t, orders, order{Do: orderGo})
	next(reportApplied) // whatever became of its context

	go commit(t.Context()) // that answer is recorded
	next(reportApplied)
}

func TestAHelperSaysWhereItIsAndEndsWhenAskedTo(t *testing.T) {
	h, err := StartHelper(t.Context(), puppetConfig{Help: "here"})
	if err != nil {
		t.Fatal(err)
	}
	if h.Address != "here" {
		t.Errorf("it is at %q", h.Address)
	}
	if err := h.Stop(20 * time.Second); err != nil {
		t.Error(err)
	}
}

func TestAHelperThatEndsByItselfIsAnErrorWithItsLastWords(t *testing.T) {
	if _, err := StartHelper(t.Context(), puppetConfig{Crash: true}); err == nil || !strings.Contains(err.Error(), "puppet: cut") {
		t.Errorf("error is %v", err)
	}
}

func TestAProcessWhoseReportsCannotBeReadIsEndedWithTheReason(t *testing.T) {
	if _, err := StartHelper(t.Context(), puppetConfig{Noise: true}); err == nil || !strings.Contains(err.Error(), "it wrote what is no report") {
		t.Errorf("error is %v", err)
	}
}

func TestWhatIsAwaitedElsewhereFailsWithItsErrorAndWithoutProgress(t *testing.T) {
	c, broken := NewCrew(nil), errors.New("broken")
	left := []int{3, 2, 0}
	err := c.AwaitNone(t.Context(), func(context.Context) (n int, err error) {
		n, left = left[0], left[1:]
		return n, nil
	}, time.Minute)
	if err != nil || len(left) != 0 {
		t.Errorf("%v, and %v is left", err, left)
	}
	if err := c.AwaitNone(t.Context(), func(context.Context) (int, error) { return 1, broken }, time.Minute); !errors.Is(err, broken) {
		t.Error(err)
	}
	err = c.AwaitNone(t.Context(), func(context.Context) (int, error) { return 5, nil }, 50*time.Millisecond)
	if err == nil || !strings.Contains(err.Error(), "no progress for 50ms with 5 messages to go") {
		t.Error(err)
	}
}

func TestARequestThatOthersHaveDoneIsNoPlaceToStrikeUnlessItsPartitionMoves(t *testing.T) {
	c := NewCrew(nil)
	c.Elsewhere = func(_ context.Context, subject string) (bool, error) { return subject == "done", nil }
	for name, x := range map[string]struct {
		report
		want bool
	}{
		"not done":            {report{Point: Answered, Subject: "new"}, false},
		"done":                {report{Point: Answered, Subject: "done"}, true},
		"just done":           {report{Point: AfterCommit, Subject: "done"}, false},
		"done, with an owner": {report{Point: BeforeSend, Subject: "done", Work: Work{{Partition: 3}}}, false},
		"messages":            {report{Point: InHand, Work: Work{{To: 5}}}, false},
	} {
		if got, err := c.isRepetition(t.Context(), x.report); got != x.want || err != nil {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
}
