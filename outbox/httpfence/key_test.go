package httpfence_test

import (
	"context"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/epochfence/epochfence/outbox/httpfence"
)

func TestAKnownKeyIsAnsweredAgainWithWhatWasStored(t *testing.T) {
	eachStore(t, func(t *testing.T, r *rig) {
		h := httpfence.Handler(r.open(), http.HandlerFunc(r.apply), quiet)
		send(t, h, call("a", 5, "k"), "x").want(201, "done under epoch 5", false)
		again := send(t, h, call("a", 7, "k"), "x")
		again.want(201, "done under epoch 5", true)
		if ct := again.Header.Get("Content-Type"); ct != "text/plain" {
			t.Errorf("Content-Type %q", ct)
		}
		r.wantLog(t, effect{"a", "k", 5})
	})
}

func TestTheEpochOfAReplayCountsAndIsCheckedBeforeIt(t *testing.T) {
	eachStore(t, func(t *testing.T, r *rig) {
		h := httpfence.Handler(r.open(), http.HandlerFunc(r.apply), quiet)
		send(t, h, call("a", 5, "k"), "x").want(201, "done under epoch 5", false)
		send(t, h, call("a", 7, "k"), "x").want(201, "done under epoch 5", true)
		send(t, h, call("a", 6, "new"), "x").wantProblem(412, httpfence.TypeStale)
		send(t, h, call("a", 5, "k"), "x").wantProblem(412, httpfence.TypeStale)
	})
}

func TestAKeyBelongsToOneRequestOfOneScope(t *testing.T) {
	eachStore(t, func(t *testing.T, r *rig) {
		h := httpfence.Handler(r.open(), http.HandlerFunc(r.apply), quiet)
		send(t, h, call("a", 5, "k"), "x").want(201, "done under epoch 5", false)
		send(t, h, call("a", 5, "k"), "y").wantProblem(422, httpfence.TypeKeyReused)
		for _, change := range []func(*http.Request){
			func(r *http.Request) { r.Method = http.MethodPut },
			func(r *http.Request) { r.URL.Path = "/refunds" },
			func(r *http.Request) { r.URL.RawQuery = "twice" },
		} {
			req := request(t.Context(), call("a", 5, "k"), "x")
			change(req)
			serve(t, h, req).wantProblem(422, httpfence.TypeKeyReused)
		}
		send(t, h, call("b", 2, "k"), "y").want(201, "done under epoch 2", false)
		r.wantLog(t, effect{"a", "k", 5}, effect{"b", "k", 2})
	})
}

func TestAFinalRefusalOfTheHandlerIsKeptAndReplayed(t *testing.T) {
	eachStore(t, func(t *testing.T, r *rig) {
		calls := 0
		h := httpfence.Handler(r.open(), http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			calls++
			w.WriteHeader(http.StatusPaymentRequired)
			_, _ = fmt.Fprint(w, "declined")
		}), quiet)
		send(t, h, call("a", 1, "k"), "x").want(402, "declined", false)
		send(t, h, call("a", 1, "k"), "x").want(402, "declined", true)
		if calls != 1 {
			t.Errorf("%d calls", calls)
		}
	})
}

func TestARequestWhoseKeyIsInFlightWaitsAndIsAnsweredWithTheSame(t *testing.T) {
	eachStore(t, func(t *testing.T, r *rig) {
		begun, goOn := make(chan struct{}), make(chan struct{})
		h := httpfence.Handler(r.open(), http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			close(begun)
			<-goOn
			r.apply(w, req)
		}), quiet)
		first, second := make(chan *answer, 1), make(chan *answer, 1)
		go func() { first <- send(t, h, call("a", 5, "k"), "x") }()
		<-begun
		go func() { second <- send(t, h, call("a", 5, "k"), "x") }()
		close(goOn)
		(<-first).want(201, "done under epoch 5", false)
		(<-second).want(201, "done under epoch 5", true)
		r.wantLog(t, effect{"a", "k", 5})
	})
}

func TestForgetDeletesAnswersAndNoEpoch(t *testing.T) {
	eachStore(t, func(t *testing.T, r *rig) {
		s := r.open().(interface {
			httpfence.Store
			Forget(ctx context.Context, age time.Duration) (int64, error)
		})
		h := httpfence.Handler(s, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}), quiet)
		for i := range 1100 {
			send(t, h, call("a", 5, fmt.Sprint(i)), "x")
		}
		if n, err := s.Forget(t.Context(), time.Hour); n != 0 || err != nil {
			t.Errorf("forgot %d, %v", n, err)
		}
		send(t, h, call("a", 5, "0"), "x").want(200, "", true)
		await(t, func() bool { // all are older than nothing, soon
			n, err := s.Forget(t.Context(), time.Microsecond)
			if err != nil {
				t.Fatal(err)
			}
			return n == 0
		})
		send(t, h, call("a", 5, "0"), "x").want(200, "", false)
		send(t, h, call("a", 4, "1"), "x").wantProblem(412, httpfence.TypeStale)
	})
}
