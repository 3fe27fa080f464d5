package leasetest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/lease"
)

const (
	lock   = "nightly" // what members acquire
	shared = "orders"  // what they share
)

func oneAtATime(w *world) {
	var all sync.WaitGroup
	for n := range 3 {
		m := w.join(fmt.Sprint("m", n))
		all.Go(func() {
			for range 5 {
				h := m.locks()
				if g := w.confirms(h); g <= h.Generation()-1 {
					w.Errorf("confirmed under %d, and the lease has %d", g, h.Generation())
				}
				if err := h.Release(w.ctx); err != nil {
					w.Error(err)
				}
				err := h.Err()
				w.Wantf(errors.Is(err, lease.ErrLost), "after its release: %v", err)
			}
		})
	}
	all.Wait()
}

// alternate has members take the lock again and again without a rest, in which a member that waits does not
// see a release before it looks.
func alternate(w *world) {
	var all sync.WaitGroup
	holds, began := make([]atomic.Int64, 3), time.Now()
	fair := func() bool {
		a, b, c := holds[0].Load(), holds[1].Load(), holds[2].Load()
		return min(a, b, c) >= max(1, (a+b+c)/10)
	}
	for n := range holds {
		m := w.join(fmt.Sprint("m", n))
		all.Go(func() { // longer on a machine that is busy
			for time.Since(began) < 4*w.ttl || time.Since(began) < 8*w.ttl && !fair() {
				h := m.locks()
				w.sleep(w.ttl / 500)
				_ = h.Release(w.ctx) // a busy machine may have cost the member its lease
				holds[n].Add(1)
			}
		})
	}
	all.Wait()
	w.Logf("they have had it %d, %d and %d times", holds[0].Load(), holds[1].Load(), holds[2].Load())
	w.Wantf(fair(), "one of them has had it too rarely")
}

func released(w *world) {
	a, b := w.join("a"), w.join("b")
	h := a.locks()
	got := make(chan time.Time)
	go func() {
		b.locks()
		got <- time.Now()
	}()
	w.sleep(w.ttl / 4)
	at := time.Now()
	w.NoError(h.Release(w.ctx))
	took := (<-got).Sub(at)
	w.Wantf(took <= w.ttl, "it was taken %v after its release", took)
}

func cutOff(w *world) {
	a, b := w.join("a"), w.join("b")
	h := a.locks()
	a.cut()
	at := time.Now()
	taken := b.locks() // fails if a still has it
	took := time.Since(at)
	w.Wantf(took <= 3*w.ttl, "it was taken over after %v", took)
	a.mend()
	w.loses(h, nil)
	w.confirms(taken)
	_ = h.Release(w.ctx)
	w.confirms(taken)
	w.NoError(taken.Release(w.ctx))
	a.locks()
}

// A process that stands still for longer than the TTL has sent a renewal before, or sends it after:
// what it knew does not count any more.
func frozen(w *world) {
	a, b := w.join("a"), w.join("b")
	h := a.locks()
	land, landed := make(chan struct{}), make(chan error, 2)
	for _, in := range []string{"/resource/", "/member/"} {
		a.next(fault{in: in, until: land, done: landed})
	}
	if _, err := h.Confirm(w.ctx); err == nil {
		w.Fatal("a write that has not landed is a confirmation")
	}
	w.until("a renewal is under way", func() bool { return !a.hasFault() })
	a.cut()
	taken := b.locks()
	close(land)
	for range 2 {
		err := <-landed
		w.Wantf(errors.Is(err, cas.ErrConflict), "a late write: %v, want a conflict", err)
	}
	w.confirms(taken)
	a.mend()
	w.loses(h, nil)
}

// refused wants a member not to get the lock within half a TTL.
func (w *world) refused(m *member) {
	w.Helper()
	ctx, cancel := context.WithTimeout(w.ctx, w.ttl/2)
	defer cancel()
	if h, err := m.Acquire(ctx, lock); err == nil {
		w.Errorf("%s got a lease that is held", m.name)
		_ = h.Release(w.ctx)
	} else if !errors.Is(err, context.DeadlineExceeded) {
		w.Errorf("acquire: %v", err)
	}
}

func shares(w *world) {
	var all []*member
	for n := range 3 {
		all = append(all, w.join(fmt.Sprint("m", n), serving(12)).run())
	}
	w.until("each has four", func() bool { return w.shared(all, 4) })
	all = append(all, w.join("joiner", serving(12)).run())
	w.until("each has three", func() bool { return w.shared(all, 3) })
	all[0].leave()
	w.until("the others have four", func() bool { return w.shared(all[1:], 4) })
	all[1].cut() // as one that is killed
	w.until("the last two have six", func() bool { return w.shared(all[2:], 6) })
	all[1].mend()
	w.until("each has four again", func() bool { return w.shared(all[1:], 4) })
}

func (w *world) shared(members []*member, each int) bool {
	has := w.has()
	for _, m := range members {
		if has[m.Owner()] != each {
			return false
		}
	}
	return len(has) == len(members)
}

func declines(w *world) {
	until := make(chan struct{})
	var once sync.Once
	a := w.join("a", serving(1)).runs(func(h *lease.Held) {
		once.Do(func() { h.Decline(until) })
		if h.Err() == nil {
			select {
			case <-until:
				<-h.Draining()
			default:
			}
		}
	})
	w.until("it was declined", func() bool { return w.allHeld(0) && w.lastGeneration() > 0 })
	b := w.join("b", serving(1)).run()
	w.until("the other has it", func() bool { return w.shared([]*member{b}, 1) })
	w.sleep(3 * w.ttl)
	w.Wantf(w.shared([]*member{b}, 1), "it was taken back from the other")
	close(until)
	b.leave()
	w.until("the first has it again", func() bool { return w.shared([]*member{a}, 1) })
}

func (w *world) lastGeneration() int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.last[lease.Resource{Name: shared}]
}

func stalls(w *world) {
	a, b := w.join("a", stalling(w.ttl)), w.join("b")
	h := a.locks()
	for range 16 {
		w.sleep(w.ttl / 8)
		h.Progress()
	}
	w.NoErrorf(h.Err(), "with progress")
	taken := b.locks()
	w.loses(h, lease.ErrStalled)
	w.confirms(taken)
}

func overruns(w *world) {
	var mu sync.Mutex
	var lost []error
	a := w.join("a", serving(1)).runs(func(h *lease.Held) {
		<-h.Context().Done() // whatever Draining says
		mu.Lock()
		defer mu.Unlock()
		lost = append(lost, h.Err())
	})
	w.until("it is leased", func() bool { return w.allHeld(1) })
	a.leave()
	w.Wantf(len(lost) == 1 && errors.Is(lost[0], lease.ErrDrainOverrun), "lost: %v", lost)
}

func comesBack(w *world) {
	a := w.join("a")
	h := a.locks()
	a.cut()
	again := w.join("a")
	w.refused(again)
	taken := again.locks()
	a.mend()
	w.loses(h, nil)
	w.confirms(taken)
}

func longerTTL(w *world) {
	a, b := w.join("a", within(4*w.ttl)), w.join("b")
	h := a.locks()
	a.cut()
	at := time.Now()
	b.locks() // fails if a still has it
	took := time.Since(at)
	w.Wantf(took >= 2*w.ttl, "it was taken over after %v", took)
	a.mend()
	w.loses(h, nil)
}

func (w *world) holder() *lease.Held {
	w.mu.Lock()
	defer w.mu.Unlock()
	hs := w.holders[lease.Resource{Name: shared}]
	if len(hs) == 0 {
		return nil
	}
	return hs[len(hs)-1]
}

// keys are the keys of the group as they are now.
func (w *world) keys(part string) []cas.Item {
	w.Helper()
	s := w.store()
	var items []cas.Item
	for item, err := range s.List(w.ctx, w.group+"/lease/"+part) {
		if err == nil {
			item, err = s.Get(w.ctx, item.Key)
		}
		w.NoError(err)
		items = append(items, item)
	}
	return items
}

// deletes removes the keys, whoever replaces them meanwhile.
func (w *world) deletes(part string) {
	w.Helper()
	s := w.store()
	for _, item := range w.keys(part) {
		for {
			err := s.Delete(w.ctx, item)
			if err == nil {
				break
			}
			if item, err = s.Get(w.ctx, item.Key); err != nil || !item.Live {
				w.Fatalf("%+v, %v", item, err)
			}
		}
	}
}

func deletedLease(w *world) {
	w.resets = true // without numbers, nothing remembers the generation
	a := w.join("a", serving(1)).run()
	w.until("it is leased", func() bool { return w.allHeld(1) })
	first := w.holder()
	w.deletes("resource/")
	w.loses(first, nil)
	w.until("it is leased anew", func() bool { return w.shared([]*member{a}, 1) && w.holder() != first })
	w.confirms(w.holder())
}

func deletedRegistration(w *world) {
	a := w.join("a", serving(1)).run()
	w.until("it is leased", func() bool { return w.allHeld(1) })
	first := w.holder()
	w.deletes("member/")
	w.loses(first, nil)
	w.until("it is leased anew", func() bool { return w.shared([]*member{a}, 1) && w.holder() != first })
	w.confirms(w.holder())
}

func foreignValues(w *world) {
	s := w.store()
	for key, value := range map[string]string{
		"resource/orders/0": "what is this",
		"resource/orders/1": `{"member":"ghost"}`,
		"resource/orders/2": `{"member":7}`,
		"resource/orders/3": `[]`,
		"resource/orders/4": "",
		"resource/orders/x": `{}`,
		"resource/":         `{}`,
		"member/ghost":      `{"name":"ghost","serves":{"orders":8}}`,
		"member/giant":      `{"name":"giant","serves":{"orders":1000000,"others":2000000000}}`,
		"member/garbage":    "what is this",
		"member/forever":    `{"name":"forever","serves":{"orders":8},"ttl":1}`,
		"member/":           `{}`,
		"other":             `{}`,
	} {
		_, err := s.Swap(w.ctx, cas.Item{Key: w.group + "/lease/" + key}, []byte(value), nil)
		w.Mustf(err == nil, "%s: %v", key, err)
	}
	at := time.Now()
	a, b := w.join("a", serving(8)).run(), w.join("b", serving(8)).run()
	w.until("all is leased", func() bool { return w.shared([]*member{a, b}, 4) })
	took := time.Since(at)
	w.Wantf(took <= 8*w.ttl, "it took %v", took)
}

func lagging(w *world) {
	var all []*member
	for n := range 3 {
		way := &wire{store: w.store(), lags: true}
		all = append(all, w.joinBy(way, fmt.Sprint("m", n), serving(6)).run())
	}
	w.until("each has two", func() bool { return w.shared(all, 2) })
	all[0].cut()
	w.until("the others have three", func() bool { return w.shared(all[1:], 3) })
	w.until("they can confirm them", w.confirmed)
	all[0].mend()
}

func killed(w *world) {
	a, b := w.join("a", serving(6)).run(), w.join("b", serving(6)).run()
	for range 3 {
		w.until("each has three that it can confirm", func() bool {
			return w.shared([]*member{a, b}, 3) && w.confirmed() && w.shared([]*member{a, b}, 3)
		})
		w.rig.Kill(w)
	}
	w.until("each has three again", func() bool {
		return w.shared([]*member{a, b}, 3) && w.confirmed() && w.shared([]*member{a, b}, 3)
	})
}

func restored(w *world) {
	if w.rig.Backup == nil || w.rig.Strands {
		w.Skip("needs Rig.Backup, after which clients can go on")
	}
	w.leasesOn(func() func() {
		restore := w.rig.Backup(w)
		w.sleep(2 * w.ttl) // so that the store goes back
		return restore
	})
}

func emptied(w *world) {
	if w.rig.Empty == nil || w.rig.Strands {
		w.Skip("needs Rig.Empty, after which clients can go on")
	}
	w.leasesOn(func() func() { return func() { w.rig.Empty(w) } })
}

// leasesOn loses what the store has, and wants all to be leased and confirmed again.
func (w *world) leasesOn(prepare func() (loss func())) {
	a, b := w.join("a", serving(6)).run(), w.join("b", serving(6)).run()
	w.until("each has three", func() bool { return w.shared([]*member{a, b}, 3) })
	loss := prepare()
	w.mu.Lock()
	w.resets = true
	w.mu.Unlock()
	loss()
	w.until("each has three that it can confirm", func() bool {
		return w.shared([]*member{a, b}, 3) && w.confirmed() && w.shared([]*member{a, b}, 3)
	})
}
