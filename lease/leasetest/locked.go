package leasetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/lease"
)

// locked are the histories of work under a lock. Each has a desk of its own.
func locked[TX any](open func(t testing.TB) Desk[TX]) []history {
	at := func(play func(w *works[TX])) func(w *world) {
		return func(w *world) {
			at := &works[TX]{world: w, desk: open(w)}
			play(at)
			at.addsUp()
		}
	}
	return []history{
		{claim: "a holder that is frozen before its commit commits nothing once another one has claimed", play: at(frozenCommit[TX])},
		{claim: "a holder that is frozen in its work, and does not see that its lease is over, commits nothing", play: at(frozenWork[TX])},
		{claim: "a holder that is frozen before its claim replaces no later one", play: at(frozenClaim[TX])},
		{claim: "a holder whose name came back commits no step after the other's", play: at(workComesBack[TX])},
		{claim: "work under a lock is committed once, whatever requests and answers are lost", play: at(contendedWork[TX])},
		{claim: "a commit whose answer was lost is found out by claiming again, and late ones are refused", play: at(lostCommit[TX])},
		{claim: "a short outage of both stores in the middle of the work doubles nothing", play: at(shortOutageInWork[TX])},
		{claim: "a long outage of both stores in the middle of the work leaves a doubt, and the next holder works", play: at(longOutageInWork[TX])},
		{claim: "epochs of a lock grow though a backup of the store repeats its numbers", play: at(restoredWork[TX]), loses: true},
	}
}

// ice freezes a process in a step.
type ice struct {
	reached, thawed chan struct{}
}

func newIce() *ice { return &ice{reached: make(chan struct{}), thawed: make(chan struct{})} }

func (i *ice) holds(do func() error) error {
	close(i.reached)
	<-i.thawed
	return do()
}

// holdsOne reports whether a process has stood still.
func (i *ice) holdsOne() bool {
	select {
	case <-i.reached:
		return true
	default:
		return false
	}
}

// freezes starts work until it stands still. A busy machine may cost the member its lease before.
func (w *works[TX]) freezes(i *ice, line string, do func(lease.Work[TX]) error) <-chan error {
	w.Helper()
	for {
		done := make(chan error, 1)
		go func() {
			_, err := w.tries(line, do)
			done <- err
		}()
		select {
		case <-i.reached:
			return done
		case err := <-done:
			w.Mustf(errors.Is(err, lease.ErrLost) && w.ctx.Err() == nil, "before it stood still: %v", err)
		}
	}
}

// changesNothing wants a process that was frozen with a line to have committed nothing, and the error to
// say why. Whoever froze it knows that it has committed nothing, also if it is in doubt itself.
func (w *works[TX]) changesNothing(line string, err, why error) {
	w.Helper()
	w.lostFor(err, why)
	w.lines.Lock()
	defer w.lines.Unlock()
	for i := len(w.doubt) - 1; i >= 0 && errors.Is(err, epoch.ErrInDoubt); i-- {
		if strings.HasPrefix(w.doubt[i], line+" ") { // its last try, and nobody else's
			w.doubt = slices.Delete(w.doubt, i, i+1)
			return
		}
	}
}

func (w *works[TX]) lostFor(err, why error) {
	w.Helper()
	w.Wantf(errors.Is(err, lease.ErrLost) && errors.Is(err, why), "after it stood still: %v, want %v and %v", err, lease.ErrLost, why)
}

// under is lease.Do of a member at a sink.
func (w *works[TX]) under(m *member, sink epoch.Sink[TX]) func(lease.Work[TX]) error {
	return func(work lease.Work[TX]) error { return lease.Do(w.ctx, m.Member, sink, lock, work) }
}

// The other one has not worked yet, so the position of the fence is as it was.
func frozenCommit[TX any](w *works[TX]) {
	a, b, i := w.join("a"), w.join("b"), newIce()
	done := w.freezes(i, "a", w.under(a, &frail[TX]{Sink: w.desk.Sink, commit: i.holds}))
	a.cut()
	c := w.claims(b)
	close(i.thawed)
	w.changesNothing("a", <-done, epoch.ErrStale)
	a.mend()
	_, err := w.tries("b", func(work lease.Work[TX]) error { return c.Do(w.ctx, work) })
	w.Wantf(err == nil || errors.Is(err, lease.ErrLost), "the one that has claimed: %v", err)
	_ = c.Release(w.ctx)
}

// claims acquires the lock and claims it. A busy machine may cost the member its lease in between.
func (w *works[TX]) claims(m *member) *lease.Claimed[TX] {
	w.Helper()
	for {
		h := m.locks()
		c, err := lease.Claim(w.ctx, h, w.desk.Sink)
		if err == nil {
			return c
		}
		_ = h.Release(w.ctx)
		w.Mustf(errors.Is(err, lease.ErrLost) && w.ctx.Err() == nil, "claim: %v", err)
	}
}

// The transaction is open, and has written. In SQLite, it keeps the others out until it is abandoned.
// In PostgreSQL, the next claim ends its connection.
func frozenWork[TX any](w *works[TX]) {
	a, b, i := w.join("a"), w.join("b"), newIce()
	do := w.under(a, &frail[TX]{Sink: w.desk.Sink, abandons: w.desk.Excludes})
	done := w.freezes(i, "a", func(work lease.Work[TX]) error {
		return do(func(ctx context.Context, tx TX, e epoch.Epoch) error {
			err := work(ctx, tx, e)
			return i.holds(func() error { return err })
		})
	})
	a.cut()
	w.does(b, w.desk.Sink, "b")
	close(i.thawed)
	w.changesNothing("a", <-done, lease.ErrLost)
	a.mend()
}

// The holder has read the fence and confirmed its lease.
func frozenClaim[TX any](w *works[TX]) {
	a, b, i := w.join("a"), w.join("b"), newIce()
	done := w.freezes(i, "a", w.under(a, &frail[TX]{Sink: w.desk.Sink, claim: i.holds}))
	a.cut()
	w.does(b, w.desk.Sink, "b")
	close(i.thawed)
	w.changesNothing("a", <-done, epoch.ErrStale)
	a.mend()
	w.does(b, w.desk.Sink, "b again")
}

// A job of several steps is frozen before the commit of its second one.
func workComesBack[TX any](w *works[TX]) {
	a, i := w.join("a"), newIce()
	var c *lease.Claimed[TX]
	done := w.freezes(i, "the second step", func(work lease.Work[TX]) error {
		h, err := a.Acquire(w.ctx, lock)
		if err != nil {
			return err
		}
		defer func() {
			if !i.holdsOne() { // and so there is another try, which needs the lock
				_ = h.Release(w.ctx)
			}
		}()
		sink := &frail[TX]{Sink: w.desk.Sink}
		if c, err = lease.Claim(w.ctx, h, sink); err != nil {
			return err
		}
		if _, err := w.tries("the first step", func(work lease.Work[TX]) error { return c.Do(w.ctx, work) }); err != nil {
			return err
		}
		sink.commit = i.holds
		return c.Do(w.ctx, work)
	})
	a.cut()
	w.does(w.join("a"), w.desk.Sink, "the other's second step")
	close(i.thawed)
	w.changesNothing("the second step", <-done, epoch.ErrStale)
	a.mend()
	if _, err := w.tries("the third step", func(work lease.Work[TX]) error { return c.Do(w.ctx, work) }); !errors.Is(err, lease.ErrLost) {
		w.Errorf("the next step: %v, want %v", err, lease.ErrLost)
	}
}

// contendedWork has members work in turn while requests and answers of the store are lost.
func contendedWork[TX any](w *works[TX]) {
	var all sync.WaitGroup
	for n := range 3 {
		m := w.join(fmt.Sprint("m", n))
		all.Go(func() {
			for i := range 4 {
				m.next(fault{in: lock, request: (n+i)%2 == 0})
				w.does(m, w.desk.Sink, m.name)
			}
		})
	}
	all.Wait()
}

func lostCommit[TX any](w *works[TX]) {
	m := w.join("a")
	loses := func(commit func(do func() error) error) {
		w.does(m, &frail[TX]{Sink: w.desk.Sink, commit: commit}, "a")
	}
	loses(answer)
	loses(request)
	var late func() error
	loses(func(do func() error) error {
		late = do
		return epoch.ErrInDoubt
	})
	err := late()
	w.Wantf(errors.Is(err, epoch.ErrStale), "the late commit: %v, want %v", err, epoch.ErrStale)
}

func answer(do func() error) error {
	if err := do(); err != nil {
		return err
	}
	return epoch.ErrInDoubt
}

func request(func() error) error { return epoch.ErrInDoubt }

// outage cuts two members off the leases and the sink while one of them commits. It returns what to
// do when both are back, and the outcome of the commit.
func (w *works[TX]) outage(commit func(do func() error) error) (mend func(), done <-chan error) {
	a, b := w.join("a"), w.join("b")
	sink, i := &frail[TX]{Sink: w.desk.Sink}, newIce()
	sink.commit = func(do func() error) error {
		a.cut()
		b.cut()
		sink.isAway(true)
		close(i.reached)
		return commit(do)
	}
	done = w.freezes(i, "a", w.under(a, sink))
	other := make(chan struct{})
	go func() {
		defer close(other)
		w.does(b, sink, "b")
	}()
	return func() {
		sink.isAway(false)
		a.mend()
		b.mend()
		<-other
	}, done
}

func shortOutageInWork[TX any](w *works[TX]) {
	for _, lost := range []func(do func() error) error{answer, request} {
		mend, done := w.outage(lost)
		w.sleep(w.ttl / 3)
		mend()
		err := <-done
		w.Wantf(err == nil || errors.Is(err, lease.ErrLost), "after the outage: %v", err)
	}
}

func longOutageInWork[TX any](w *works[TX]) {
	for _, lost := range []func(do func() error) error{answer, request} {
		mend, done := w.outage(lost)
		w.lostFor(<-done, epoch.ErrInDoubt)
		mend()
	}
}

// restoredWork restores a backup of the store, whose numbers then repeat.
func restoredWork[TX any](w *works[TX]) {
	if w.rig.Backup == nil || w.rig.Strands {
		w.Skip("needs Rig.Backup, after which clients can go on")
	}
	w.resets = true
	m := w.join("a")
	var epochs []epoch.Epoch
	work := func() { epochs = append(epochs, w.does(m, w.desk.Sink, "a")) }
	work()
	restore := w.rig.Backup(w)
	work()
	work()
	restore()
	work()
	work()
	for i, e := range epochs[1:] {
		w.Wantf(e > epochs[i], "the epochs are %v", epochs)
	}
}
