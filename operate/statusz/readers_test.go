package statusz_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/epochfence/epochfence/internal/suites/bubble"
)

func TestTheNumberOfReadersDoesNotMatterToTheSink(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := newRig(t)
		h := r.page(nil)
		for i := range 3 {
			var all sync.WaitGroup
			for range 50 {
				all.Go(func() { get(h, "") })
			}
			all.Wait()
			if n := r.op.readings.Load(); n != int64(i+1) {
				t.Errorf("%d readings after %d seconds", n, i)
			}
			pass(time.Second)
		}
		pass(time.Hour)
		if n := r.op.readings.Load(); n != 3 {
			t.Errorf("%d readings while nobody looks", n-3)
		}
	})
}

func TestASinkThatCannotBeReadIsSaidWithHowOldTheRestIs(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.holds(orders(0))
		r.claims(orders(1), "elsewhere")
		h := r.page(nil)
		get(h, "")
		r.op.fails.Store(true)
		pass(90 * time.Second)
		status, page := get(h, "")
		if status != http.StatusOK {
			t.Error(status)
		}
		wants(t, page, "Incomplete.", "The sink could not be read: connection refused.", "was read 90 s ago", "billing/orders/1", "Member of the group yes")
		r.op.fails.Store(false)
		pass(time.Second)
		_, page = get(h, "")
		wants(t, page, "Well.")
	})
}

func TestOneReaderThatGoesAwayLeavesTheReadingToTheOthers(t *testing.T) {
	r := newRig(t)
	r.claims(orders(0), "elsewhere")
	h := r.page(nil)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/status/", nil).WithContext(ctx))
	_, page := get(h, "")
	wants(t, page, "billing/orders/0")
}

func TestTheStreamSendsThePageEachSecondAndEndsForAnotherOne(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.holds(orders(0))
		w := httptest.NewRecorder()
		began := time.Now()
		r.page(nil).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/status/events", nil))
		if d := time.Since(began); d != 10*time.Second {
			t.Errorf("it ended after %v", d)
		}
		if got := w.Header().Get("Content-Type"); got != "text/event-stream" {
			t.Errorf("content type %q", got)
		}
		events := strings.Split(strings.TrimSuffix(w.Body.String(), "\n\n"), "\n\n")
		if len(events) < 10 || len(events) > 11 {
			t.Errorf("%d events", len(events))
		}
		for _, e := range events {
			for i, line := range strings.Split(e, "\n") {
				if want := []string{"retry: 1000", "event: page"}; i < 2 && line != want[i] || i >= 2 && !strings.HasPrefix(line, "data: ") {
					t.Fatalf("line %d of an event is %q", i, line)
				}
			}
			wants(t, e, "billing/orders/0")
		}
	})
}

func TestAStreamEndsWithItsRequestAndThereAreNotTooMany(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		h := newRig(t).page(nil)
		ctx, cancel := context.WithCancel(t.Context())
		var all sync.WaitGroup
		for range 64 {
			all.Go(func() {
				h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/status/events", nil).WithContext(ctx))
			})
		}
		synctest.Wait()
		if status, _ := get(h, "events"); status != http.StatusServiceUnavailable {
			t.Errorf("the 65th stream: %d", status)
		}
		if status, _ := get(h, ""); status != http.StatusOK {
			t.Errorf("the page beside: %d", status)
		}
		cancel()
		all.Wait()
	})
}
