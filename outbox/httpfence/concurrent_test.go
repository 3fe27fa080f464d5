package httpfence_test

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/outbox/httpfence"
)

// receiver is a service over HTTP/2, so that thousands of requests are under
// way at a time over a few connections.
type receiver struct {
	client *http.Client
	url    string
	stop   func()
	failed atomic.Pointer[error] // why a request had no answer, the latest

	// before, if there is one, is called with each request that has arrived.
	before atomic.Pointer[func(*http.Request)]
}

func (r *rig) serve(t *testing.T, handle http.HandlerFunc) *receiver {
	t.Helper()
	o := quiet
	o.MaxInside = 1 << 14
	o.Wait = 5 * time.Minute
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	rec := &receiver{}
	fence := httpfence.Handler(r.open(), handle, o)
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if before := rec.before.Load(); before != nil {
			(*before)(req)
		}
		fence.ServeHTTP(w, req)
	}))
	srv.Config.Protocols = protocols
	srv.Config.HTTP2 = &http.HTTP2Config{MaxConcurrentStreams: 20000}
	srv.Config.ErrorLog = log.New(io.Discard, "", 0) // of handlers that panic on purpose
	srv.Start()
	transport := &http.Transport{Protocols: protocols, DialContext: (&net.Dialer{}).DialContext}
	stop := sync.OnceFunc(func() {
		transport.CloseIdleConnections()
		srv.CloseClientConnections()
		srv.Close()
	})
	t.Cleanup(stop)
	rec.client, rec.url, rec.stop = &http.Client{Transport: transport}, srv.URL+"/charges", stop
	// Each request that finds no connection yet dials one: have it before thousands do.
	res, err := rec.client.Get(rec.url)
	if err != nil {
		t.Fatal(err)
	}
	_ = res.Body.Close()
	return rec
}

// send returns the status, or 0 if there was no answer.
func (r *receiver) send(ctx context.Context, c httpfence.Call) (status int, replayed bool) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, r.url, http.NoBody)
	if err != nil {
		return 0, false
	}
	if err := c.SetHeaders(req.Header); err != nil {
		return 0, false
	}
	res, err := r.client.Do(req)
	if err != nil {
		r.failed.Store(&err)
		return 0, false
	}
	defer func() { _ = res.Body.Close() }()
	if _, err := io.Copy(io.Discard, res.Body); err != nil {
		r.failed.Store(&err)
		return 0, false
	}
	return res.StatusCode, res.Header.Get(httpfence.ReplayedHeader) == "true"
}

// judge reads the log that handlers wrote inside their effects.
func judge(t *testing.T, done []effect) (applied map[[2]string]epoch.Epoch) {
	t.Helper()
	applied = map[[2]string]epoch.Epoch{}
	highest := map[string]epoch.Epoch{}
	for _, e := range done {
		if e.Epoch < highest[e.Scope] {
			t.Fatalf("scope %s: effect of epoch %d after one of epoch %d", e.Scope, e.Epoch, highest[e.Scope])
		}
		highest[e.Scope] = e.Epoch
		at := [2]string{e.Scope, e.Key}
		if before, ok := applied[at]; ok {
			t.Fatalf("key %v applied under epoch %d and again under %d", at, before, e.Epoch)
		}
		applied[at] = e.Epoch
	}
	return applied
}

var requests = flag.Int("receiver.requests", 2000, "how many requests are under way at a time")

const (
	scopes = 50
	copies = 4 // of each key, under epochs of their own
	epochs = 20
)

// everything is each copy of each key of each scope, in no order; and how many keys
// each scope has.
func everything() ([]httpfence.Call, int) {
	keys := *requests / (scopes * copies)
	var all []httpfence.Call
	for s := range scopes {
		for k := range keys {
			for range copies {
				all = append(all, call(fmt.Sprint("scope-", s), epoch.Epoch(1+rand.IntN(epochs)), fmt.Sprint("key-", k)))
			}
		}
	}
	rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all, keys
}

// make long WHAT=receiver has ten thousand, which take five gigabytes under the race detector.
func TestManyConcurrentRequestsWithEpochsOutOfOrder(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: it takes seconds")
	}
	eachStore(t, func(t *testing.T, r *rig) {
		server := r.serve(t, r.apply)
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
		defer cancel()
		var all sync.WaitGroup
		var counts [600]atomic.Int64
		var replays, arrived atomic.Int64
		started := time.Now()
		calls, keys := everything()
		answered := make([]int, len(calls))
		here := make(chan struct{}) // all of them
		together := func(req *http.Request) {
			if arrived.Add(1) == int64(len(calls)) {
				close(here)
			}
			select {
			case <-here:
			case <-req.Context().Done():
			}
		}
		server.before.Store(&together)
		for i, c := range calls {
			all.Go(func() {
				status, replayed := server.send(ctx, c)
				answered[i] = status
				counts[status].Add(1)
				if replayed {
					replays.Add(1)
				}
			})
		}
		all.Wait()
		server.before.Store(nil)
		took := time.Since(started)

		applied := judge(t, r.log())
		for i, c := range calls {
			switch answered[i] {
			case http.StatusCreated:
				if e, ok := applied[[2]string{c.Scope, c.Key}]; !ok || e > c.Epoch {
					t.Fatalf("%+v was answered 201 but applied under epoch %d, %v", c, e, ok)
				}
			case http.StatusPreconditionFailed:
			case 0:
				t.Fatalf("%+v was not answered; the latest reason: %v", c, *server.failed.Load())
			default:
				t.Fatalf("%+v was answered %d", c, answered[i])
			}
		}
		if counts[201].Load()-replays.Load() != int64(len(applied)) {
			t.Errorf("%d answers were not replays, %d effects", counts[201].Load()-replays.Load(), len(applied))
		}
		t.Logf("%d requests at a time in %v: %d applied, %d replayed, %d refused",
			len(calls), took.Round(time.Millisecond), len(applied), replays.Load(), counts[412].Load())

		// The last owner sends everything again: now each key is applied, once.
		for s := range scopes {
			for k := range keys {
				all.Go(func() {
					if status, _ := server.send(t.Context(), call(fmt.Sprint("scope-", s), epochs+1, fmt.Sprint("key-", k))); status != 201 {
						t.Errorf("the last owner was answered %d", status)
					}
				})
			}
		}
		all.Wait()
		if n := len(judge(t, r.log())); n != scopes*keys {
			t.Errorf("%d keys applied, want %d", n, scopes*keys)
		}
	})
}

// The same with everything that can go wrong: handlers that fail before and
// after they have written, clients that leave, and a receiver that is stopped and
// started again in the middle.
func TestConcurrentRequestsThroughFailuresAndRestarts(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: it takes seconds")
	}
	eachStore(t, func(t *testing.T, r *rig) {
		handle := func(w http.ResponseWriter, req *http.Request) {
			fault := rand.IntN(20)
			if fault >= 5 {
				r.apply(w, req)
				return
			}
			if r.undoes && fault != 0 { // what it writes must not stay
				r.apply(httptest.NewRecorder(), req)
			}
			switch fault {
			case 0, 1:
				w.WriteHeader(http.StatusInternalServerError)
			case 2:
				w.WriteHeader(http.StatusTooManyRequests)
			case 3:
				panic("a handler that panics")
			case 4:
				panic(http.ErrAbortHandler)
			}
		}
		server := r.serve(t, handle)
		var at atomic.Pointer[receiver]
		at.Store(server)
		var done atomic.Int64
		restart := make(chan struct{})
		var all sync.WaitGroup
		calls, keys := everything()
		for _, c := range calls {
			all.Go(func() {
				if done.Add(1) == int64(len(calls))/2 {
					defer close(restart)
				}
				ctx := t.Context()
				if rand.IntN(4) == 0 { // a client without patience
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, time.Duration(rand.IntN(300))*time.Millisecond)
					defer cancel()
				}
				at.Load().send(ctx, c)
			})
		}
		<-restart
		next := r.serve(t, handle)
		at.Store(next)
		server.stop()
		all.Wait()
		judge(t, r.log())

		// The last owner tries each until it is answered for good.
		limit := make(chan struct{}, 64)
		for s := range scopes {
			for k := range keys {
				all.Go(func() {
					limit <- struct{}{}
					defer func() { <-limit }()
					for range 200 {
						if status, _ := next.send(t.Context(), call(fmt.Sprint("scope-", s), epochs+1, fmt.Sprint("key-", k))); status == 201 {
							return
						}
					}
					t.Errorf("scope %d key %d was never answered 201", s, k)
				})
			}
		}
		all.Wait()
		if n := len(judge(t, r.log())); n != scopes*keys {
			t.Errorf("%d keys applied, want %d", n, scopes*keys)
		}
	})
}
