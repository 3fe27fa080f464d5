package fenceotel

import (
	"sync"
	"time"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
)

// attempts are those to claim partitions, as far as their spans need them: when the one
// at hand began, and how many have failed before it. The zero value has none.
type attempts struct {
	mu  sync.Mutex
	all map[epoch.Partition]attempt
}

type attempt struct {
	began  time.Time
	failed int
}

// reads: an attempt begins with a read of the fence. So do other things, which is no harm:
// of an attempt it is the last read that counts.
func (as *attempts) reads(p epoch.Partition) {
	as.change(p, func(a *attempt) { a.began = time.Now() })
}

// of is when the attempt at hand began, and the how-many-eth it is.
func (as *attempts) of(p epoch.Partition) (began time.Time, number int) {
	as.mu.Lock()
	defer as.mu.Unlock()
	a := as.all[p]
	if a.began.IsZero() {
		a.began = time.Now()
	}
	return a.began, a.failed + 1
}

func (as *attempts) observe(e consumer.Event) {
	switch e := e.(type) {
	case consumer.NotClaimed:
		as.change(e.Partition, func(a *attempt) { a.failed++ })
	case consumer.Claimed:
		as.forget(e.Fence.Partition)
	case consumer.Drained:
		as.forget(e.Partition)
	case consumer.Lost:
		as.forget(e.Partition)
	}
}

func (as *attempts) change(p epoch.Partition, how func(*attempt)) {
	as.mu.Lock()
	defer as.mu.Unlock()
	if as.all == nil {
		as.all = map[epoch.Partition]attempt{}
	}
	a := as.all[p]
	how(&a)
	as.all[p] = a
}

func (as *attempts) forget(p epoch.Partition) {
	as.mu.Lock()
	defer as.mu.Unlock()
	delete(as.all, p)
}
