package leasetest

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"
	"sync"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/lease"
)

var errWire = errors.New("the connection was lost")

// wire is one member's way to the store, on which requests and answers are lost, late or old.
type wire struct {
	store cas.Store

	mu      sync.Mutex
	isCut   bool
	mended  chan struct{}       // closed when the wire is whole again
	faults  []fault             // of the next writes to matching keys
	old     map[string]cas.Item // answers of a lagging replica
	lags    bool
	counted int
}

// fault is what happens to one write whose key contains in.
type fault struct {
	in      string
	request bool            // the request is lost
	until   <-chan struct{} // the write is carried out once this is closed; its sender gets an error at once
	done    chan<- error    // gets the late write's result
}

// Cuttable returns one process's way to a store that others reach, too. While it is cut, requests wait
// until their contexts end, and changes arrive afterwards.
func Cuttable(s cas.Store) (way cas.Store, cut func() (mend func())) {
	w := &wire{store: s}
	return w.asStore(), func() func() { w.cut(); return w.mend }
}

// asStore returns the wire as a store that reports changes, if its store does.
func (w *wire) asStore() cas.Store {
	if watcher, ok := w.store.(cas.Watcher); ok {
		return watchedWire{w, watcher}
	}
	return w
}

func (w *wire) cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.isCut, w.mended = true, make(chan struct{})
}

func (w *wire) mend() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.isCut = false
	close(w.mended)
}

func (w *wire) next(f fault) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.faults = append(w.faults, f)
}

// pass counts a request, and fails while the wire is cut.
func (w *wire) pass(ctx context.Context) error {
	w.mu.Lock()
	cut := w.isCut
	w.counted++
	w.mu.Unlock()
	if cut {
		<-ctx.Done()
		return errors.Join(errWire, ctx.Err())
	}
	return ctx.Err()
}

func (w *wire) faultOf(key string) (fault, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i, f := range w.faults {
		if strings.Contains(key, f.in) {
			w.faults = append(w.faults[:i:i], w.faults[i+1:]...)
			return f, true
		}
	}
	return fault{}, false
}

// write carries out a write, or the fault that was set for it.
func (w *wire) write(ctx context.Context, key string, do func(context.Context) error) error {
	if err := w.pass(ctx); err != nil {
		return err
	}
	f, faulty := w.faultOf(key)
	switch {
	case !faulty:
		return do(ctx)
	case f.request:
		return errWire
	case f.until != nil:
		go func() {
			<-f.until
			f.done <- do(context.WithoutCancel(ctx))
		}()
		return errWire
	}
	if err := do(ctx); err != nil {
		return err
	}
	return errWire
}

func (w *wire) Facts(ctx context.Context) (cas.Facts, error) {
	if err := w.pass(ctx); err != nil {
		return cas.Facts{}, err
	}
	return w.store.Facts(ctx)
}

func (w *wire) Get(ctx context.Context, key string) (cas.Item, error) {
	if err := w.pass(ctx); err != nil {
		return cas.Item{}, err
	}
	item, err := w.store.Get(ctx, key)
	if err != nil {
		return item, err
	}
	return w.lag(item), nil
}

// lag returns each second answer of a key from before.
func (w *wire) lag(item cas.Item) cas.Item {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.lags {
		return item
	}
	if w.old == nil {
		w.old = map[string]cas.Item{}
	}
	if was, ok := w.old[item.Key]; ok && was.Version != item.Version {
		delete(w.old, item.Key)
		return was
	}
	w.old[item.Key] = item
	return item
}

func (w *wire) Swap(ctx context.Context, seen cas.Item, value, note []byte) (cas.Item, error) {
	value = append([]byte{}, value...)
	var made cas.Item // also written when the write lands late
	err := w.write(ctx, seen.Key, func(ctx context.Context) (err error) {
		made, err = w.store.Swap(ctx, seen, value, note)
		return err
	})
	if err != nil {
		return cas.Item{}, err
	}
	return made, nil
}

func (w *wire) Delete(ctx context.Context, seen cas.Item) error {
	return w.write(ctx, seen.Key, func(ctx context.Context) error { return w.store.Delete(ctx, seen) })
}

func (w *wire) List(ctx context.Context, prefix string) iter.Seq2[cas.Item, error] {
	return func(yield func(cas.Item, error) bool) {
		if err := w.pass(ctx); err != nil {
			yield(cas.Item{}, err)
			return
		}
		for item, err := range w.store.List(ctx, prefix) {
			if err == nil {
				item = w.lag(item)
			}
			if !yield(item, err) {
				return
			}
		}
	}
}

// watchedWire is the wire of a store that reports changes, none of which passes while it is cut.
type watchedWire struct {
	*wire
	watcher cas.Watcher
}

func (w watchedWire) Watch(ctx context.Context, prefix string) iter.Seq2[cas.Item, error] {
	return func(yield func(cas.Item, error) bool) {
		if err := w.pass(ctx); err != nil {
			yield(cas.Item{}, err)
			return
		}
		for item, err := range w.watcher.Watch(ctx, prefix) {
			w.mu.Lock()
			cut, mended := w.isCut, w.mended
			w.mu.Unlock()
			if cut {
				select {
				case <-mended:
				case <-ctx.Done():
				}
			}
			if !yield(item, err) {
				return
			}
		}
	}
}

func (w *wire) hasFault() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.faults) > 0
}

// cutAfter cuts the wire once do has sent the write that has a fault.
func (w *wire) cutAfter(do func()) {
	do()
	w.cut()
}

func lostConfirmations(w *world) {
	a, b := w.join("a"), w.join("b")
	h := a.locks()
	for range 3 {
		for _, request := range []bool{true, false} {
			before := h.Generation()
			err := a.failsToConfirm(h, request)
			w.Wantf(err != nil && !errors.Is(err, lease.ErrLost), "a confirmation without an answer: %v", err)
			g := w.confirms(h)
			w.Wantf(g > before, "generation %d follows %d", g, before)
		}
	}
	w.refused(b)
}

// failsToConfirm returns the error of a confirmation whose answer or request is lost. It tries again if
// another renewal of the member met the fault: a member renews by itself when it sees a write of its own
// whose answer was lost.
func (a *member) failsToConfirm(h *lease.Held, request bool) (err error) {
	for range 5 {
		a.next(fault{in: "/resource/", request: request})
		if _, err = h.Confirm(a.w.ctx); err != nil {
			break
		}
	}
	return err
}

func lateConfirmation(w *world) {
	a := w.join("a")
	h := a.locks()
	land, landed := make(chan struct{}), make(chan error, 1)
	a.next(fault{in: "/resource/", until: land, done: landed})
	_, err := h.Confirm(w.ctx)
	w.Mustf(err != nil, "a write that has not landed is a confirmation")
	before := h.Generation()
	close(land)
	w.NoErrorf(<-landed, "the late write")
	g := w.confirms(h)
	w.Wantf(g > before, "generation %d follows %d", g, before)
}

func lostAcquisition(w *world) {
	a, b := w.join("a"), w.join("b")
	for _, request := range []bool{false, true} {
		a.next(fault{in: "/resource/", request: request})
		h := a.locks()
		w.confirms(h)
		w.refused(b)
		if err := h.Release(w.ctx); err != nil {
			w.Error(err)
		}
	}
}

func lostRegistration(w *world) {
	for n, request := range []bool{false, true} {
		way := &wire{store: w.store()}
		way.next(fault{in: "/member/", request: request})
		m := w.joinBy(way, fmt.Sprint("m", n))
		h := m.locks()
		w.sleep(2 * w.ttl)
		w.confirms(h)
		if err := h.Release(w.ctx); err != nil {
			w.Error(err)
		}
	}
}

func lostRelease(w *world) {
	a, b := w.join("a"), w.join("b")
	for _, request := range []bool{false, true} {
		h := a.locks()
		a.next(fault{in: "/resource/", request: request})
		_ = h.Release(w.ctx)
		taken := b.locks()
		w.confirms(taken)
		if err := taken.Release(w.ctx); err != nil {
			w.Error(err)
		}
	}
}

func lateRelease(w *world) {
	a, b := w.join("a"), w.join("b")
	h := a.locks()
	land, landed := make(chan struct{}), make(chan error, 1)
	a.next(fault{in: "/resource/", until: land, done: landed})
	a.cutAfter(func() { _ = h.Release(w.ctx) })
	taken := b.locks()
	close(land)
	err := <-landed
	w.Wantf(errors.Is(err, cas.ErrConflict), "the late release: %v, want a conflict", err)
	w.confirms(taken)
	a.mend()
}

func shortOutage(w *world) {
	a, b := w.join("a"), w.join("b")
	h := a.locks()
	a.cut()
	b.cut()
	w.sleep(w.ttl / 3)
	a.mend()
	b.mend()
	w.confirms(h)
	w.refused(b)
	w.sleep(2 * w.ttl)
	w.confirms(h)
}

func longOutage(w *world) {
	var all []*member
	for n := range 3 {
		all = append(all, w.join(fmt.Sprint("m", n), serving(6)).run())
	}
	w.until("all is leased", func() bool { return w.allHeld(6) })
	for _, m := range all {
		m.cut()
	}
	w.until("all is lost", func() bool { return w.allHeld(0) })
	w.sleep(2 * w.ttl)
	for _, m := range all {
		m.mend()
	}
	w.until("all is leased again", func() bool { return w.allHeld(6) })
}
