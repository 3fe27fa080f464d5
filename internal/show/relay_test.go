package show

import (
	"context"
	"encoding/json"
	"net/http"
	"runtime"
	"testing"
	"time"
)

// receiver answers each request with a status, if the request's context allows.
type receiver int

func (status receiver) RoundTrip(r *http.Request) (*http.Response, error) {
	if err := r.Context().Err(); err != nil {
		return nil, err
	}
	return &http.Response{StatusCode: int(status), Body: http.NoBody, Request: r}, nil
}

// request sends one in a context that ends once ended is closed.
func request(t *testing.T, stage *Stage, status int, ended <-chan struct{}) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
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
	client := &http.Client{Transport: Sending(receiver(status), stage)}
	if answer, err := client.Do(r); err == nil {
		_ = answer.Body.Close()
	}
}

func send(t *testing.T, orders *json.Encoder, stopAt Point) {
	t.Helper()
	if err := orders.Encode(stopAt); err != nil {
		t.Fatal(err)
	}
}

func TestARequestThatWasStoppedReachesTheReceiverAlthoughItsContextHasEnded(t *testing.T) {
	stage, orders, reports := testStage(t)
	_, next := reading(t, reports)
	send(t, orders, BeforeSend)
	armed(t, stage)
	ended, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		request(t, stage, http.StatusPreconditionFailed, ended)
	}()
	r := next(reportReached)
	if r.Point != BeforeSend || r.Text != "payment-7" {
		t.Errorf("it stands at %+v", r)
	}
	close(ended)
	send(t, orders, "")
	if r := next(reportEnded); r.Text != Refused || !r.Stopped {
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
	next(reportEnded)
	select {
	case r := <-told:
		t.Errorf("report %+v", r)
	case <-time.After(50 * time.Millisecond): // nothing is to be waited for: it must not come
	}
}

func TestAWorkerIsStoppedAfterAnAnswer(t *testing.T) {
	stage, orders, reports := testStage(t)
	_, next := reading(t, reports)
	send(t, orders, Answered)
	armed(t, stage)
	never := make(chan struct{})
	defer close(never)
	go request(t, stage, http.StatusCreated, never)
	if r := next(reportReached); r.Point != Answered || r.Text != "payment-7" {
		t.Errorf("it stands at %+v", r)
	}
}

// armed returns once the stage has its order.
func armed(t *testing.T, s *Stage) {
	t.Helper()
	for t.Context().Err() == nil {
		s.mu.Lock()
		is := s.armed != ""
		s.mu.Unlock()
		if is {
			return
		}
		runtime.Gosched()
	}
}
