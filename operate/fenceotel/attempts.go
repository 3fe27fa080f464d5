package fenceotel

import (
	"sync"
	"time"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
)

// attempts keeps, for the spans of claims, when each partition's current attempt began and how many
// attempts have failed before it. The zero value is empty.
type attempts struct {
	mu  sync.Mutex
	all map[epoch.Partition]attempt
}

type attempt struct {
	began  time.Time
	failed int
}

// reads notes the start of an attempt, which begins with a read of the fence. Other reads of the
// fence do no harm, because the last read before the claim counts.
func (as *attempts) reads(p epoch.Partition) {
	as.change(p, func(a *attempt) { a.began = time.Now() })
}

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
