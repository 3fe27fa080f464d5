package leasetest

import (
	"fmt"
	"sync"
	"time"

	"github.com/epochfence/epochfence/lease"
)

// ends has members end the registration of another one. Until it learns of that, it thinks that it holds its leases:
// from now on only the store decides whether two members have one.
func (w *world) ends(registration string, by ...*member) {
	w.Helper()
	w.mu.Lock()
	w.suspects = true
	w.mu.Unlock()
	var all sync.WaitGroup
	for _, m := range by {
		all.Go(func() { w.NoErrorf(m.End(w.ctx, registration, "test"), "%s ends %s", m.name, registration) })
	}
	all.Wait()
}

// refusedFromNow wants no confirmation of a lease to succeed from now on. Confirmations may go unanswered.
func (w *world) refusedFromNow(h *lease.Held) {
	w.checks.Go(func() {
		for h.Err() == nil && w.ctx.Err() == nil {
			if _, err := h.Confirm(w.ctx); err == nil {
				w.Errorf("%s confirms %s, which another member has taken", h.Owner(), h.Resource)
				return
			}
		}
	})
}

func endedDead(w *world) {
	var all []*member
	for n := range 3 {
		all = append(all, w.join(fmt.Sprint("m", n), serving(12)).run())
	}
	w.until("each has four", func() bool { return w.shared(all, 4) })
	a, rest := all[0], all[1:]
	id := a.Registration()
	a.cut()
	at := time.Now()
	w.ends(id, rest...)
	w.until("the others have six", func() bool {
		has := w.has()
		return has[rest[0].Owner()] == 6 && has[rest[1].Owner()] == 6
	})
	took := time.Since(at)
	w.Logf("its leases were taken after %v", took)
	w.Wantf(took <= w.ttl/5+time.Second, "its leases were taken after %v", took) // a busy machine
	w.ends(id, rest...)
	w.ends("NOBODYHASTHISID2", rest...)
	a.mend()
	w.until("each has four again", func() bool { return w.shared(all, 4) && w.confirmed() })
}

func endedAlive(w *world) {
	all := []*member{w.join("a", serving(4)).run(), w.join("b", serving(4)).run()}
	w.until("each has two", func() bool { return w.shared(all, 2) })
	for n := range 4 {
		a, b := all[n%2], all[1-n%2]
		id := a.Registration()
		w.ends(id, b)
		w.until("it is registered anew", func() bool { now := a.Registration(); return now != "" && now != id })
		w.until("each has two again", func() bool { return w.shared(all, 2) && w.confirmed() })
	}
}
