package httpfence_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/outbox/httpfence"
)

func call(scope string, e epoch.Epoch, key string) httpfence.Call {
	return httpfence.Call{Scope: scope, Epoch: e, Key: key}
}

func TestALowerEpochIsRefusedAfterAHigherOneAndAnEqualOneIsNot(t *testing.T) {
	eachStore(t, func(t *testing.T, r *rig) {
		h := httpfence.Handler(r.open(), http.HandlerFunc(r.apply), quiet)
		send(t, h, call("a", 5, "k1"), "x").want(201, "done under epoch 5", false)
		send(t, h, call("a", 5, "k2"), "x").want(201, "done under epoch 5", false)
		send(t, h, call("a", 6, "k3"), "x").want(201, "done under epoch 6", false)
		p := send(t, h, call("a", 5, "k4"), "x").wantProblem(412, httpfence.TypeStale)
		if p.Scope != "a" || p.Epoch != 5 || p.Highest != 6 {
			t.Errorf("problem %+v", p)
		}
		send(t, h, call("b", 1, "k4"), "x").want(201, "done under epoch 1", false)
		r.wantLog(t, effect{"a", "k1", 5}, effect{"a", "k2", 5}, effect{"a", "k3", 6}, effect{"b", "k4", 1})
	})
}

// A number that no claim reaches locks a scope's owner out until an operator fixes it.
func TestAPersonCanLowerWhatAScopeHasSeen(t *testing.T) {
	eachStore(t, func(t *testing.T, r *rig) {
		store := r.open()
		h := httpfence.Handler(store, http.HandlerFunc(r.apply), quiet)
		send(t, h, call("a", 5, "k1"), "x").want(201, "done under epoch 5", false)
		send(t, h, call("a", math.MaxInt64, "k2"), "x").want(201, "done under epoch 9223372036854775807", false)
		send(t, h, call("a", 6, "k3"), "x").wantProblem(412, httpfence.TypeStale)
		lower := store.(interface {
			ForgetAbove(ctx context.Context, scope string, to epoch.Epoch) error
		}).ForgetAbove
		for scope, to := range map[string]epoch.Epoch{"unknown": 5, "a": 0} {
			if err := lower(t.Context(), scope, to); err == nil {
				t.Errorf("scope %q was lowered to %d", scope, to)
			}
		}
		if err := lower(t.Context(), "a", 6); err != nil {
			t.Fatal(err)
		}
		if err := lower(t.Context(), "a", 6); err == nil {
			t.Error("lowered again")
		}
		send(t, h, call("a", 5, "k3"), "x").wantProblem(412, httpfence.TypeStale)
		send(t, h, call("a", 6, "k3"), "x").want(201, "done under epoch 6", false)
		send(t, h, call("a", 6, "k2"), "x").want(201, "done under epoch 9223372036854775807", true)
	})
}

func TestAHigherEpochWaitsUntilTheHandlerOfALowerOneIsOver(t *testing.T) {
	eachStore(t, func(t *testing.T, r *rig) {
		begun, goOn := make(chan struct{}), make(chan struct{})
		h := httpfence.Handler(r.open(), http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			if c, _ := httpfence.CallOf(req.Context()); c.Epoch == 5 {
				close(begun)
				<-goOn
			}
			r.apply(w, req)
		}), quiet)
		// Two processes, so that the wait is for the database's lock too.
		other := h
		if r.db != nil {
			other = httpfence.Handler(r.open(), http.HandlerFunc(r.apply), quiet)
		}
		first, second := make(chan *answer, 1), make(chan *answer, 1)
		go func() { first <- send(t, h, call("a", 5, "k5"), "x") }()
		<-begun
		go func() { second <- send(t, other, call("a", 6, "k6"), "x") }()
		select {
		case a := <-second:
			t.Errorf("answered %d while the lower one still ran", a.StatusCode)
		case <-time.After(100 * time.Millisecond):
		}
		close(goOn)
		(<-first).want(201, "done under epoch 5", false)
		(<-second).want(201, "done under epoch 6", false)
		r.wantLog(t, effect{"a", "k5", 5}, effect{"a", "k6", 6})
	})
}

func TestTheWaitForAScopeIsBoundedAndHasNoEffect(t *testing.T) {
	eachStore(t, func(t *testing.T, r *rig) {
		begun, goOn := make(chan struct{}), make(chan struct{})
		here := r.open()
		slow := httpfence.Handler(here, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			close(begun)
			<-goOn
			r.apply(w, req)
		}), quiet)
		o := quiet
		o.Wait = 20 * time.Millisecond
		stores := []httpfence.Store{here}
		if r.db != nil {
			stores = append(stores, r.open()) // another process
		}
		done := make(chan *answer, 1)
		go func() { done <- send(t, slow, call("a", 5, "k"), "x") }()
		<-begun
		for _, s := range stores {
			busy := send(t, httpfence.Handler(s, http.HandlerFunc(r.apply), o), call("a", 6, "other"), "x")
			busy.wantProblem(503, httpfence.TypeBusy)
			if busy.Header.Get("Retry-After") == "" {
				t.Error("no Retry-After")
			}
		}
		close(goOn)
		(<-done).want(201, "done under epoch 5", false)
		r.wantLog(t, effect{"a", "k", 5})
	})
}

// The wait may end while a connection is made, in the middle of BEGIN, or for the lock.
func TestAWaitThatEndsAtAnyMomentIsBusy(t *testing.T) {
	eachStore(t, func(t *testing.T, r *rig) {
		s, served := r.open(), 0
		for i := range 200 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*20*time.Microsecond)
			c := httpfence.Call{Scope: "a", Epoch: 1, Key: fmt.Sprint(i)}
			_, err := s.Serve(ctx, c, httpfence.Fingerprint{}, func(context.Context) (httpfence.Answer, bool) {
				served++
				return httpfence.Answer{Status: http.StatusOK}, true
			})
			cancel()
			if err != nil && !errors.Is(err, httpfence.ErrBusy) {
				t.Fatalf("after %d times 20 µs: %v, want ErrBusy", i, err)
			}
		}
		t.Logf("%d of 200 were served", served)
	})
}

func TestAClientThatLeavesWhileItWaitsHasNoEffect(t *testing.T) {
	eachStore(t, func(t *testing.T, r *rig) {
		begun, goOn := make(chan struct{}), make(chan struct{})
		h := httpfence.Handler(r.open(), http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			if c, _ := httpfence.CallOf(req.Context()); c.Key == "first" {
				close(begun)
				<-goOn
			}
			r.apply(w, req)
		}), quiet)
		done := make(chan *answer, 1)
		go func() { done <- send(t, h, call("a", 5, "first"), "x") }()
		<-begun
		ctx, leave := context.WithCancel(t.Context())
		left := make(chan *answer, 1)
		go func() { left <- serve(t, h, request(ctx, call("a", 9, "left"), "x")) }()
		leave()
		(<-left).wantProblem(503, httpfence.TypeBusy)
		close(goOn)
		(<-done).want(201, "done under epoch 5", false)
		send(t, h, call("a", 6, "next"), "x").want(201, "done under epoch 6", false)
		r.wantLog(t, effect{"a", "first", 5}, effect{"a", "next", 6})
	})
}

func TestAClientThatLeavesDoesNotStopAHandlerAndGetsTheAnswerLater(t *testing.T) {
	eachStore(t, func(t *testing.T, r *rig) {
		ctx, leave := context.WithCancel(t.Context())
		h := httpfence.Handler(r.open(), http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			leave()
			if err := req.Context().Err(); err != nil {
				t.Errorf("the handler's context: %v", err)
			}
			r.apply(w, req)
		}), quiet)
		serve(t, h, request(ctx, call("a", 5, "k"), "x")).want(201, "done under epoch 5", false)
		send(t, h, call("a", 5, "k"), "x").want(201, "done under epoch 5", true)
		r.wantLog(t, effect{"a", "k", 5})
	})
}

func TestEpochsAndAnswersSurviveTheProcess(t *testing.T) {
	eachDatabase(t, func(t *testing.T, r *rig) {
		h := httpfence.Handler(r.open(), http.HandlerFunc(r.apply), quiet)
		send(t, h, call("a", 5, "k"), "x").want(201, "done under epoch 5", false)
		h = httpfence.Handler(r.open(), http.HandlerFunc(r.apply), quiet)
		send(t, h, call("a", 4, "k"), "x").wantProblem(412, httpfence.TypeStale)
		send(t, h, call("a", 5, "k"), "x").want(201, "done under epoch 5", true)
		r.wantLog(t, effect{"a", "k", 5})
	})
}

// await polls until ok.
func await(t *testing.T, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(20 * time.Second)
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatal("it did not happen within 20 s")
		}
	}
}

func TestARequestThatIsNotWholeIsRefusedWithTheReason(t *testing.T) {
	h := httpfence.Handler(httpfence.NewMemory(), http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		t.Error("the handler was called")
	}), httpfence.Options{MaxBody: 3})
	for name, c := range map[string]struct {
		header, value, want string
	}{
		"no epoch":            {httpfence.EpochHeader, "", "Epochfence-Epoch is missing"},
		"epoch zero":          {httpfence.EpochHeader, "0", "Epochfence-Epoch"},
		"epoch negative":      {httpfence.EpochHeader, "-1", "Epochfence-Epoch"},
		"epoch with a sign":   {httpfence.EpochHeader, "+1", "Epochfence-Epoch"},
		"epoch 2^63":          {httpfence.EpochHeader, "9223372036854775808", "Epochfence-Epoch"},
		"epoch in words":      {httpfence.EpochHeader, "six", "Epochfence-Epoch"},
		"no scope":            {httpfence.ScopeHeader, "", "Epochfence-Scope is missing"},
		"a long scope":        {httpfence.ScopeHeader, strings.Repeat("x", 256), "256 bytes"},
		"a scope not ASCII":   {httpfence.ScopeHeader, "ä", "ASCII"},
		"no key":              {httpfence.KeyHeader, "", "Idempotency-Key is missing"},
		"a key not quoted":    {httpfence.KeyHeader, "k", "double quotes"},
		"a key half quoted":   {httpfence.KeyHeader, `"k`, "double quotes"},
		"a quote in a key":    {httpfence.KeyHeader, `"a"b"`, "double quotes"},
		"a bad escape":        {httpfence.KeyHeader, `"a\b"`, "double quotes"},
		"an escape at an end": {httpfence.KeyHeader, `"a\"`, "double quotes"},
		"a parameter":         {httpfence.KeyHeader, `"a";b=c`, "double quotes"},
		"an empty key":        {httpfence.KeyHeader, `""`, "0 bytes"},
		"a long key":          {httpfence.KeyHeader, `"` + strings.Repeat("x", 256) + `"`, "256 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			req := request(t.Context(), call("a", 1, "k"), "x")
			req.Header.Del(c.header)
			if c.value != "" {
				req.Header.Set(c.header, c.value)
			}
			if p := serve(t, h, req).wantProblem(400, httpfence.TypeMalformed); !strings.Contains(p.Detail, c.want) {
				t.Errorf("detail %q, want %q", p.Detail, c.want)
			}
		})
	}
	twice := request(t.Context(), call("a", 1, "k"), "x")
	twice.Header.Add(httpfence.EpochHeader, "2")
	serve(t, h, twice).wantProblem(400, httpfence.TypeMalformed)
	send(t, h, call("a", 1, "k"), "four").wantProblem(413, httpfence.TypeTooLarge)
}

func TestMoreThanMaxInsideAreRefusedAtOnce(t *testing.T) {
	begun, goOn := make(chan struct{}), make(chan struct{})
	o := quiet
	o.MaxInside = 1
	h := httpfence.Handler(httpfence.NewMemory(), http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		close(begun)
		<-goOn
	}), o)
	done := make(chan *answer, 1)
	go func() { done <- send(t, h, call("a", 1, "k"), "x") }()
	<-begun
	send(t, h, call("b", 1, "k"), "x").wantProblem(503, httpfence.TypeBusy)
	close(goOn)
	(<-done).want(200, "", false)
}

func TestOptionsThatAreWrongAreRefusedWithTheReason(t *testing.T) {
	for want, o := range map[string]httpfence.Options{
		"MaxBody":        {MaxBody: -1},
		"MaxAnswer":      {MaxAnswer: 1 << 40},
		"MaxInside":      {MaxInside: -1},
		"Wait":           {Wait: -time.Second},
		"HandlerTimeout": {HandlerTimeout: 48 * time.Hour},
	} {
		func() {
			defer func() {
				if v := recover(); !strings.Contains(fmt.Sprint(v), want) {
					t.Errorf("recovered %v, want it to name %s", v, want)
				}
			}()
			httpfence.Handler(httpfence.NewMemory(), http.NotFoundHandler(), o)
		}()
	}
}
