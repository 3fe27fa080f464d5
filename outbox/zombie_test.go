package outbox_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"

	"github.com/epochfence/epochfence/outbox"
	"github.com/epochfence/epochfence/outbox/httpfence"
)

// late is a network in which requests can be held back, and delivered when the
// test says so, whether or not the sender still waits for the answer.
type late struct {
	http.RoundTripper
	mu   sync.Mutex
	hold bool
	held []*http.Request
}

func (l *late) RoundTrip(req *http.Request) (*http.Response, error) {
	l.mu.Lock()
	hold := l.hold
	if hold {
		copied := req.Clone(context.WithoutCancel(req.Context()))
		copied.Body, _ = req.GetBody()
		l.held = append(l.held, copied)
	}
	l.mu.Unlock()
	if !hold {
		return l.RoundTripper.RoundTrip(req)
	}
	_ = req.Body.Close()
	<-req.Context().Done()
	return nil, req.Context().Err()
}

func (l *late) setHold(on bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.hold = on
}

func (l *late) waiting() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.held)
}

// fencedRig has a receiver with a fence, whose effects got records.
func fencedRig(t *testing.T, o outbox.Options[*tx], network func(http.RoundTripper) http.RoundTripper) (*rig, *[]string) {
	t.Helper()
	r := &rig{T: t, db: newDatabase()}
	var mu sync.Mutex
	var effects []string
	srv := httptest.NewServer(httpfence.Handler(httpfence.NewMemory(), http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
		body, _ := io.ReadAll(req.Body)
		c, _ := httpfence.CallOf(req.Context())
		mu.Lock()
		defer mu.Unlock()
		effects = append(effects, fmt.Sprintf("%s under %d", body, c.Epoch))
	}), httpfence.Options{Logger: slog.New(slog.DiscardHandler)}))
	t.Cleanup(srv.Close)
	r.url = srv.URL
	return r.withBox(o, &http.Client{Transport: network(srv.Client().Transport)}), &effects
}

func TestAZombiesRequestThatArrivesLateHasNoEffect(t *testing.T) {
	net := &late{hold: true}
	r, effects := fencedRig(t, fast, func(rt http.RoundTripper) http.RoundTripper { net.RoundTripper = rt; return net })
	r.add("a 1", "a 2")
	zombie := r.relay(4)
	r.await("the zombie's request on its way", func() bool { return net.waiting() == 1 })
	net.setHold(false)
	next := r.relay(5) // both are alive
	r.awaitEmpty()
	res, err := net.RoundTripper.RoundTrip(net.held[0])
	if err != nil {
		t.Fatal(err)
	}
	_ = res.Body.Close()
	if res.StatusCode != http.StatusPreconditionFailed {
		t.Errorf("the late request was answered %d", res.StatusCode)
	}
	r.stop(zombie)
	r.stop(next)
	if want := []string{"1 under 5", "2 under 5"}; !slices.Equal(*effects, want) {
		t.Errorf("effects %q, want %q", *effects, want)
	}
}
