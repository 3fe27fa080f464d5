package leasetest

import (
	"errors"
	"fmt"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/lease"
)

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
