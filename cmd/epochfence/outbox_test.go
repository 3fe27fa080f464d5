package main

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/outbox/httpfence"
)

// What a receiver has refused is sent at once when an operator says so, or not at all, while
// the group is at work; and what it has taken came once.
func TestOutboxBesideALiveRelay(t *testing.T) {
	everywhere(t, besideALiveRelay)
}

func besideALiveRelay(t *testing.T, open func(broken) *place) {
	t.Helper()
	r := &receiver{taken: map[string]int{}}
	server := httptest.NewServer(r)
	t.Cleanup(server.Close)
	p := open(none)
	p.posts = func(m consumer.Message) string {
		if m.Partition.Number == 1 && m.Offset%20 == 10 {
			return server.URL + "/orders"
		}
		return ""
	}
	l := atWork(t, p)
	l.through()
	l.awaits("both were refused", func() bool { return r.refusals() == 2 })
	var listed struct {
		Entries []struct {
			ID  int64
			Key string `json:"idempotency_key"`
		}
	}
	l.reads(&listed, "outbox", "list")
	if len(listed.Entries) != 2 {
		t.Fatalf("listed: %+v", listed)
	}
	shown := l.does(exitOK, "outbox", "show", text(listed.Entries[0].ID)).out
	if strings.Contains(shown, "s3cret") {
		t.Errorf("a secret is shown:\n%s", shown)
	}
	r.fix()
	l.growing(func() {
		l.executes("outbox", "retry", text(listed.Entries[0].ID))
		l.executes("outbox", "discard", text(listed.Entries[1].ID))
		l.awaits("it was sent", func() bool { return r.count(listed.Entries[0].Key) > 0 })
	})
	l.through()
	l.awaits("the outbox is empty", func() bool {
		l.reads(&listed, "outbox", "list")
		return len(listed.Entries) == 0
	})
	l.audit(none)
	for key, n := range r.all() {
		if n != 1 {
			t.Errorf("%s was taken %d times", key, n)
		}
	}
	if r.count("order/1/10") != 1 || r.count("order/1/30") != 0 {
		t.Errorf("taken: %v", r.all())
	}
	tells(t, l.does(exitOK, "outbox", "history").out, "outbox-retry", "outbox-discard", "anna", "for the test")
}

// receiver refuses everything, for a reason that passes, until it is fixed.
type receiver struct {
	mu      sync.Mutex
	fixed   bool
	refused int
	taken   map[string]int // by idempotency key
}

func (r *receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.fixed {
		r.refused++
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	r.taken[strings.Trim(req.Header.Get(httpfence.KeyHeader), `"`)]++
}

func (r *receiver) fix() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.fixed = true
}

func (r *receiver) refusals() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.refused
}

func (r *receiver) count(key string) int { return r.all()[key] }

func (r *receiver) all() map[string]int {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := map[string]int{}
	for k, n := range r.taken {
		all[k] = n
	}
	return all
}
