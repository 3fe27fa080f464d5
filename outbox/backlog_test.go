package outbox_test

import (
	"errors"
	"net/http"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/epochfence/epochfence/internal/suites/bubble"
	"github.com/epochfence/epochfence/outbox"
)

type roundTrips func(*http.Request) (*http.Response, error)

func (f roundTrips) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func TestTheBacklogIsToldWhileEntriesWaitAndWhenTheyAreGone(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var up atomic.Bool
		var observed []outbox.Backlog
		var at []time.Duration
		start := time.Now()
		r := &rig{T: t, db: newDatabase(), url: "http://receiver.test/"}
		r.withBox(outbox.Options[*tx]{
			RetryMax: time.Second,
			ObserveBacklog: func(b outbox.Backlog) {
				observed, at = append(observed, b), append(at, time.Since(start))
			},
		}, &http.Client{Transport: roundTrips(func(*http.Request) (*http.Response, error) {
			if !up.Load() {
				return nil, errors.New("no route to host")
			}
			return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody}, nil
		})})
		r.add("a 1", "a 2", "b 3")
		run := r.relay(7)
		<-time.After(25 * time.Second)
		synctest.Wait()
		for i, b := range observed {
			if b != (outbox.Backlog{Partition: orders, Entries: 3, Oldest: began}) {
				t.Errorf("observed %+v", b)
			}
			if i > 0 && (at[i]-at[i-1] < 10*time.Second || at[i]-at[i-1] > 12*time.Second) {
				t.Errorf("observed after %v", at[i]-at[i-1])
			}
		}
		if len(observed) != 3 {
			t.Errorf("observed %d times in 25 s, want 3", len(observed))
		}
		up.Store(true)
		<-time.After(3 * time.Second)
		synctest.Wait()
		if last := observed[len(observed)-1]; len(observed) != 4 || last != (outbox.Backlog{Partition: orders}) {
			t.Errorf("observed %+v, want that none are left", observed)
		}
		r.stop(run)
	})
}

func TestABacklogIsCountedUpToALimit(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		observed := make(chan outbox.Backlog, 10)
		r := &rig{T: t, db: newDatabase(), url: "http://receiver.test/"}
		r.withBox(outbox.Options[*tx]{
			RetryMin: time.Hour, RetryMax: time.Hour,
			ObserveBacklog: func(b outbox.Backlog) { observed <- b },
		}, &http.Client{Transport: roundTrips(func(*http.Request) (*http.Response, error) { return nil, errors.New("no route to host") })})
		for id := range int64(10_050) {
			r.db.state.rows[id+1] = outbox.Row{ID: id + 1, Entry: outbox.Entry{Method: "POST", Scope: "s", IdempotencyKey: "k", URL: r.url}}
		}
		run := r.relay(7)
		if b := <-observed; b.Entries != 10_000 || !b.More {
			t.Errorf("observed %+v, want 10,000 and more", b)
		}
		r.stop(run)
	})
}
