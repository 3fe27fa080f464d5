package outbox_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/suites/bubble"
	"github.com/epochfence/epochfence/outbox"
)

// chance is a history: everything that can fail does so now and then.
type chance struct {
	*rand.Rand
	mu sync.Mutex
}

func (c *chance) oneIn(n int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.IntN(n) == 0
}

// lossy loses requests and answers.
type lossy struct {
	http.RoundTripper
	*chance
}

func (l lossy) RoundTrip(req *http.Request) (*http.Response, error) {
	if l.oneIn(8) {
		_ = req.Body.Close()
		return nil, errLost
	}
	res, err := l.RoundTripper.RoundTrip(req)
	if err == nil && l.oneIn(8) { // after the effect
		_ = res.Body.Close()
		return nil, errLost
	}
	return res, err
}

// TestClaimsMayEndAtAnyMoment ends claims before, between and after each of the
// steps of a relay, while requests, answers, transactions, their acknowledgements and
// OnAnswer fail. In the end each entry has had its effect once, those of a key in
// order, and each answer is recorded once.
func TestClaimsMayEndAtAnyMoment(t *testing.T) {
	for seed := range uint64(bubble.Rounds(60)) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			luck := &chance{Rand: rand.New(rand.NewPCG(seed, 1))}
			var now sync.Mutex
			end := func() {} // of the claim there is
			maybeEnd := func() {
				if luck.oneIn(12) {
					now.Lock()
					defer now.Unlock()
					end()
				}
			}
			o := fast
			o.RetryMax = 2 * time.Millisecond
			o.OnAnswer = func(_ context.Context, t *tx, e outbox.Sent, _ outbox.Answer) error {
				maybeEnd()
				t.note(string(e.Body))
				if luck.oneIn(10) {
					return errTest
				}
				return nil
			}
			r, effects := fencedRig(t, o, func(rt http.RoundTripper) http.RoundTripper { return lossy{rt, luck} })
			const keys, each = 5, 8
			for i := range each {
				for k := range keys {
					r.add(fmt.Sprintf("k%d k%d/%02d", k, k, i))
				}
			}
			r.db.fail = func(int) error {
				maybeEnd()
				if luck.oneIn(10) {
					return fmt.Errorf("%w: away", epoch.ErrTransient)
				}
				return nil
			}
			claims := epoch.Epoch(0)
			for len(r.db.left()) > 0 {
				if claims++; claims > 3000 {
					t.Fatalf("after %d claims %d entries are left", claims, len(r.db.left()))
				}
				c := &claimInDoubt{claim: &claim{db: r.db, epoch: claims, applied: make(chan struct{}, 1)}, luck: luck}
				ctx, cancel := context.WithCancel(t.Context())
				c.end = cancel
				now.Lock()
				end = cancel
				now.Unlock()
				done := make(chan struct{})
				go func() { defer close(done); r.box.Relay(ctx, c) }()
				empty := time.NewTicker(time.Millisecond)
				limit := time.NewTimer(patience)
				for running := true; running; {
					select {
					case <-done:
						running = false
					case <-empty.C:
						if len(r.db.left()) == 0 {
							cancel()
						}
					case <-limit.C:
						t.Fatalf("the relay stands still under claim %d; left %v", claims, r.db.left())
					}
				}
				empty.Stop()
				limit.Stop()
				cancel()
			}
			for what, got := range map[string][]string{"effects": *effects, "answers": r.db.notes()} {
				of := map[string][]string{}
				for _, s := range got {
					s, _, _ = strings.Cut(s, " ")
					of[s[:2]] = append(of[s[:2]], s)
				}
				for k, all := range of {
					if !slices.IsSorted(all) || len(slices.Compact(slices.Clone(all))) != len(all) || len(all) != each {
						t.Errorf("%s of key %s: %q", what, k, all)
					}
				}
				if len(of) != keys {
					t.Errorf("%s of %d keys", what, len(of))
				}
			}
		})
	}
}
