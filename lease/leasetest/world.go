package leasetest

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/cas/castest"
	"github.com/epochfence/epochfence/internal/suites/verdict"
	"github.com/epochfence/epochfence/lease"
)

// world is what a history plays in.
type world struct {
	verdict.TB
	ctx   context.Context
	group string
	ttl   time.Duration
	rig   castest.Rig

	mu       sync.Mutex
	holders  map[lease.Resource][]*lease.Held // in the order in which they took it
	last     map[lease.Resource]int64         // their generations
	resets   bool                             // the store forgets what it has acknowledged
	checks   sync.WaitGroup
	suspects bool // living members were ended, who may not know it yet
	stop     []func()
}

func newWorld(t testing.TB, group string, ttl time.Duration, r castest.Rig) *world {
	// t.Context() ends before cleanups, in which members need the store.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 40*ttl)
	w := &world{TB: verdict.TB{TB: t}, ctx: ctx, group: group, ttl: ttl, rig: r, holders: map[lease.Resource][]*lease.Held{}, last: map[lease.Resource]int64{}}
	t.Cleanup(func() {
		for _, stop := range w.stop {
			stop()
		}
		w.checks.Wait()
		cancel()
	})
	return w
}

func direct(address string) string { return address }

// store returns a store with a client of its own.
func (w *world) store() cas.Store { return w.rig.Open(w, direct) }

// member is one process of the group.
type member struct {
	*lease.Member
	*wire
	w    *world
	name string
	stop context.CancelFunc
	done chan struct{} // closed when Run has returned
}

type option func(*lease.Options)

func serving(n int32) option {
	return func(o *lease.Options) { o.Resources = map[string]int32{shared: n} }
}

func stalling(after time.Duration) option { return func(o *lease.Options) { o.MaxStall = after } }

func within(ttl time.Duration) option { return func(o *lease.Options) { o.TTL = ttl } }

// join makes a member of the group.
func (w *world) join(name string, options ...option) *member {
	w.Helper()
	return w.joinBy(&wire{store: w.store()}, name, options...)
}

func (w *world) joinBy(way *wire, name string, options ...option) *member {
	w.Helper()
	o := lease.Options{Group: w.group, TTL: w.ttl, MaxStall: -1, Name: name, Logger: slog.New(slog.NewTextHandler(w.Output(), &slog.HandlerOptions{Level: slog.LevelWarn})).With("at", name)}
	for _, set := range options {
		set(&o)
	}
	s := way.asStore()
	m, err := lease.Open(w.ctx, s, o)
	for err != nil && w.ctx.Err() == nil && (errors.Is(err, errWire) || errors.Is(err, context.DeadlineExceeded)) {
		m, err = lease.Open(w.ctx, s, o)
	}
	w.NoErrorf(err, "open")
	joined := &member{Member: m, wire: way, w: w, name: name}
	w.stop = append(w.stop, joined.leave)
	return joined
}

// leave ends the member, as a process does that ends in order.
func (m *member) leave() {
	if m.Member == nil {
		return
	}
	if m.stop != nil {
		m.stop()
		<-m.done
	}
	m.Close()
	m.Member = nil
}

// run shares the member's resources. It holds each lease until it is to be given back or lost.
func (m *member) run() *member {
	return m.runs(func(h *lease.Held) {
		select {
		case <-h.Draining():
		case <-h.Context().Done():
		}
	})
}

func (m *member) runs(own func(*lease.Held)) *member {
	ctx, stop := context.WithCancel(m.w.ctx)
	m.stop, m.done = stop, make(chan struct{})
	go func() {
		defer close(m.done)
		if err := m.Run(ctx, func(h *lease.Held) {
			m.w.took(h)
			own(h)
		}); err != nil && !errors.Is(err, lease.ErrClosed) {
			m.w.Errorf("run: %v", err)
		}
	}()
	return m
}

// locks acquires the lock.
func (m *member) locks() *lease.Held {
	m.w.Helper()
	h, err := m.Acquire(m.w.ctx, lock)
	m.w.NoErrorf(err, "%s", m.name)
	m.w.took(h)
	return h
}

// took checks that nobody else has the lease.
func (w *world) took(h *lease.Held) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, before := range w.holders[h.Resource] {
		switch {
		case before.Err() != nil || w.resets:
		case w.suspects:
			w.refusedFromNow(before)
		default:
			w.Errorf("two members have %s", h.Resource)
		}
	}
	if g, last := h.Generation(), w.last[h.Resource]; g <= last && !w.resets {
		w.Errorf("generation %d of %s follows %d", g, h.Resource, last)
	}
	w.holders[h.Resource] = append(w.holders[h.Resource], h)
	w.last[h.Resource] = h.Generation()
}

// confirms repeats a confirmation until the store has answered.
func (w *world) confirms(h *lease.Held) int64 {
	w.Helper()
	for {
		g, err := h.Confirm(w.ctx)
		if err == nil {
			return g
		}
		w.Mustf(!errors.Is(err, lease.ErrLost) && w.ctx.Err() == nil, "confirm: %v", err)
	}
}

// loses wants a lease to be lost, also as far as confirmations tell.
func (w *world) loses(h *lease.Held, why error) {
	w.Helper()
	select {
	case <-h.Context().Done():
	case <-w.ctx.Done():
		w.Fatalf("%s was not lost", h.Resource)
	}
	_, err := h.Confirm(w.ctx)
	w.Wantf(errors.Is(err, lease.ErrLost) && (why == nil || errors.Is(err, why)), "confirm after the loss: %v, want %v", err, why)
}

// confirmed reports whether all leases that are not lost can be confirmed.
func (w *world) confirmed() bool {
	w.mu.Lock()
	held := w.holding()
	w.mu.Unlock()
	for _, h := range held {
		if _, err := h.Confirm(w.ctx); err != nil {
			return false
		}
	}
	return true
}

// until polls.
func (w *world) until(what string, is func() bool) {
	w.Helper()
	for !is() {
		w.Mustf(w.sleep(w.ttl/100), "not within %v: %s", 40*w.ttl, what)
	}
}

func (w *world) sleep(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-w.ctx.Done():
		return false
	}
}

// has counts the leases of each member that are not lost.
func (w *world) has() map[string]int {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := map[string]int{}
	for _, h := range w.holding() {
		n[h.Owner()]++
	}
	return n
}

// holding returns the leases that are not lost. w.mu is held.
func (w *world) holding() []*lease.Held {
	var held []*lease.Held
	for _, hs := range w.holders {
		for _, h := range hs {
			if h.Err() == nil {
				held = append(held, h)
			}
		}
	}
	return held
}

// allHeld reports whether as many leases are held and confirmed.
func (w *world) allHeld(want int) bool {
	sum := 0
	for _, n := range w.has() {
		sum += n
	}
	return sum == want
}
