package leasetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/lease"
	"github.com/epochfence/epochfence/sinks/memsink"
)

const report = "report"

func writes(line string) lease.Work[*memsink.Tx] {
	return func(_ context.Context, tx *memsink.Tx, _ epoch.Epoch) error {
		tx.Append(report, line)
		return nil
	}
}

// frozenWork freezes the holder with its transaction open, until another member has done the work.
func frozenWork(w *world) {
	a, b := w.join("a"), w.join("b")
	sink := memsink.New()
	frozen, reached, thawed := sink.Open(), make(chan struct{}), make(chan struct{})
	frozen.Script(memsink.Hooks{Commit: func(_ context.Context, _ []epoch.Advance, do func() error) error {
		close(reached)
		<-thawed
		return do()
	}})
	done := make(chan error, 1)
	go func() { done <- lease.Do(w.ctx, a.Member, frozen, lock, writes("a")) }()
	<-reached
	a.cut()
	if err := lease.Do(w.ctx, b.Member, sink, lock, writes("b")); err != nil {
		w.Errorf("the second: %v", err)
	}
	close(thawed)
	if err := <-done; !errors.Is(err, epoch.ErrStale) {
		w.Errorf("the frozen one: %v, want %v", err, epoch.ErrStale)
	}
	a.mend()
	if got := sink.List(report); !slices.Equal(got, []string{"b"}) {
		w.Errorf("the report is %q", got)
	}
}

// contendedWork has members work in turn while requests and answers of the store are lost.
func contendedWork(w *world) {
	const members, each = 3, 4
	sink := memsink.New()
	var all sync.WaitGroup
	for n := range members {
		m := w.join(fmt.Sprint("m", n))
		all.Go(func() {
			for i := range each {
				m.next(fault{in: lock, request: (n+i)%2 == 0})
				line := fmt.Sprint(m.name, " ", i)
				for {
					err := lease.Do(w.ctx, m.Member, sink, lock, writes(line))
					if err == nil {
						break
					}
					if !errors.Is(err, lease.ErrLost) || w.ctx.Err() != nil {
						w.Errorf("%s: %v", line, err)
						return
					}
				}
			}
		})
	}
	all.Wait()
	got := sink.List(report)
	slices.Sort(got)
	if want := len(slices.Compact(slices.Clone(got))); len(got) != members*each || want != len(got) {
		w.Errorf("of %d works, these were committed: %q", members*each, got)
	}
}

// restoredWork restores a backup of the store, whose numbers then repeat.
func restoredWork(w *world) {
	if w.rig.Backup == nil || w.rig.Strands {
		w.Skip("needs Rig.Backup, after which clients can go on")
	}
	w.resets = true
	m, sink := w.join("a"), memsink.New()
	var epochs []epoch.Epoch
	work := func() {
		var under epoch.Epoch
		for {
			err := lease.Do(w.ctx, m.Member, sink, lock, func(_ context.Context, _ *memsink.Tx, e epoch.Epoch) error {
				under = e
				return nil
			})
			if err == nil {
				break
			}
			if !errors.Is(err, lease.ErrLost) || w.ctx.Err() != nil {
				w.Fatalf("after %v: %v", epochs, err)
			}
		}
		epochs = append(epochs, under)
	}
	work()
	restore := w.rig.Backup(w)
	work()
	work()
	restore()
	work()
	work()
	for i, e := range epochs[1:] {
		if e <= epochs[i] {
			w.Errorf("the epochs are %v", epochs)
		}
	}
}
