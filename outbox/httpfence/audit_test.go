package httpfence_test

import (
	"log"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/outbox/httpfence"
)

// audit logs the decision about each request: the resource, the token, and what was decided.
func audit(log *slog.Logger) func(httpfence.Event) {
	return func(e httpfence.Event) {
		log.Info("request", "resource", e.Scope, "key", e.Key, "token", int64(e.Epoch), "decision", e.Outcome.String(), "seen", int64(e.Highest))
	}
}

// Two owners send requests about one account. The first one was paused, and wakes up.
func ExampleOptions_observe() {
	logger := slog.New(slog.NewTextHandler(os.Stdout, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}}))
	pay := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusCreated) })
	h := httpfence.Handler(httpfence.NewMemory(), pay, httpfence.Options{Observe: audit(logger)})
	post := func(owner epoch.Epoch, key string) {
		req := httptest.NewRequest(http.MethodPost, "/charges", strings.NewReader("12.50"))
		if err := (httpfence.Call{Scope: "account/17", Epoch: owner, Key: key}).SetHeaders(req.Header); err != nil {
			log.Fatal(err)
		}
		h.ServeHTTP(httptest.NewRecorder(), req)
	}
	post(7, "charge-1")
	post(8, "charge-1") // the next owner does not know whether the first one's request arrived
	post(8, "charge-2")
	post(7, "charge-3") // the first one wakes up
	// Output:
	// level=INFO msg=request resource=account/17 key=charge-1 token=7 decision=applied seen=0
	// level=INFO msg=request resource=account/17 key=charge-1 token=8 decision=replayed seen=0
	// level=INFO msg=request resource=account/17 key=charge-2 token=8 decision=applied seen=0
	// level=INFO msg=request resource=account/17 key=charge-3 token=7 decision=stale seen=8
}
