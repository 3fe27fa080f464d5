package castest

import (
	"bytes"
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/cas/memstore"
	"github.com/epochfence/epochfence/internal/suites/bubble"
	"github.com/epochfence/epochfence/internal/suites/verdict"
)

// This file shows that a history catches each broken store, those of broken_test.go and the broken
// clients below, and that each history catches one.

func remotely(t testing.TB, get func(*remote)) Rig {
	address := serve(t, memstore.New())
	return Rig{Served: true, Open: func(_ testing.TB, via func(string) string) cas.Store {
		r := &remote{address: via(address)}
		get(r)
		return r
	}}
}

var remoteTeeth = []struct {
	name   string
	wrong  func(r *remote)
	caught string
}{
	{"the client sends again", func(r *remote) { r.retries = true }, "a write whose answer was lost"},
	{"the client sends writes again that were made together", func(r *remote) { r.retries = true }, "writes together"},
	{"a lost answer is a success", func(r *remote) { r.hopeful = true }, "a write whose request was lost"},
	{"a lost answer is a refusal", func(r *remote) { r.resigned = true }, "a write whose answer was lost"},
	{"the client ignores the context", func(r *remote) { r.deaf = true }, "a server that is silent"},
	{"a broken connection is kept", func(r *remote) { r.sticky = true }, "a store that was away"},
	{"a lost answer is the end of a list", func(r *remote) { r.content = true }, "a list during which"},
	{"a watch ignores the context", func(r *remote) { r.deaf = true }, "a watch of a server that is silent"},
	{"a watch goes on with what comes after a cut", func(r *remote) { r.anew = true }, "what changed while a watch was cut off"},
}

// catches plays the history whose claim begins with caught, and fails unless it fails.
func catches(t *testing.T, caught string, create func(t testing.TB) Rig) {
	t.Helper()
	for _, h := range append(histories[:len(histories):len(histories)], onNodes...) {
		if !strings.HasPrefix(h.claim, caught) {
			continue
		}
		failed, said := verdict.Of(t, func(t testing.TB) { h.play(newWorld(t, 3*time.Second, create(t))) })
		if !failed {
			t.Errorf("not caught by %q:\n%s", h.claim, said)
		}
		return
	}
	t.Errorf("no history begins with %q", caught)
}

func TestEveryBrokenStoreIsCaught(t *testing.T) {
	for _, b := range teeth {
		t.Run(b.name, func(t *testing.T) {
			t.Parallel()
			bubble.Test(t, func(t *testing.T) {
				catches(t, b.caught, func(testing.TB) Rig {
					s := newBroken()
					b.take(s)
					return s.rig()
				})
				<-time.After(2 * patience) // the bubble's time, until calls that ignore their context have ended
			})
		})
	}
	for _, b := range remoteTeeth {
		t.Run(b.name, func(t *testing.T) {
			t.Parallel()
			catches(t, b.caught, func(t testing.TB) Rig { return remotely(t, b.wrong) })
		})
	}
}

func TestEveryHistoryCatchesSomething(t *testing.T) {
	for _, h := range append(histories[:len(histories):len(histories)], onNodes...) {
		caught := false
		for _, b := range teeth {
			caught = caught || strings.HasPrefix(h.claim, b.caught)
		}
		for _, b := range remoteTeeth {
			caught = caught || strings.HasPrefix(h.claim, b.caught)
		}
		if !caught {
			t.Errorf("no broken store is caught by %q", h.claim)
		}
	}
}

func TestASoundStorePasses(t *testing.T) {
	t.Parallel()
	Run(t, func(testing.TB) Rig { return newBroken().rig() })
	RunKilled(t, func(testing.TB) Rig { return newBroken().rig() })
}

// Replicas answer reads of etcd, NATS and ZooKeeper.
func TestAStoreWhoseReadsLagPasses(t *testing.T) {
	t.Parallel()
	Run(t, func(testing.TB) Rig {
		b := newBroken()
		var mu sync.Mutex
		replica := map[string]cas.Item{}
		lag := 0
		b.get = func(ctx context.Context, key string) (cas.Item, error) {
			now, err := b.Store.Get(ctx, key)
			mu.Lock()
			defer mu.Unlock()
			if old, known := replica[key]; err == nil && known && lag < 2 {
				lag++
				old.Value, old.Note = bytes.Clone(old.Value), bytes.Clone(old.Note)
				return old, nil
			}
			lag = 0
			if err == nil {
				replica[key] = now
				now.Value, now.Note = bytes.Clone(now.Value), bytes.Clone(now.Note)
			}
			return now, err
		}
		r := b.rig()
		r.Native, r.Foreign = nil, nil
		return r
	})
}

func TestASoundStoreBehindANetworkPasses(t *testing.T) {
	t.Parallel()
	Run(t, func(t testing.TB) Rig { return remotely(t, func(*remote) {}) })
}
