package consumer

import (
	"cmp"
	"slices"
	"time"
)

// This file decides how many messages all partitions of a shared transaction take together, and how
// long it may wait for a lock (L1). bisection.go decides the same for a partition that has failed.

// sizing decides how many messages the next transaction of a committer's shared lane takes in
// total, from what the transactions before it cost.
//
// A transaction of many messages may fail where each of them alone would not: it deadlocks with
// another process on the same rows, it uses up the lock table, or it takes too long. The time that
// such a failure cost has to be earned, many times over, by calm transactions of a smaller size
// before the size grows again. That bounds the loss: if larger transactions keep failing,
// throughput stays close to that of one message in each transaction.
type sizing struct {
	most     int
	usual    int           // only a brief transaction takes more
	capacity int           // what the next transaction takes
	cooldown time.Duration // calm time before capacity grows
	typical  time.Duration // average duration of a transaction that was not refused
}

const (
	// firstCapacity limits the first transaction, because nothing is known of the handler. Transactions
	// that are slow and end in time do not become smaller than this: if the commit is slow, and not
	// the messages, taking fewer of them does not help.
	firstCapacity = 256

	// usualCapacity and maxCapacity are the limits if Options.MaxBatch is not set. If handlers write a set
	// at once, beginning and ending a transaction still costs a good part of one of 4,096 messages:
	// in bench, 16,384 made throughput a tenth to two fifths higher. If handlers write messages one
	// by one, a larger transaction gains little and holds locks for longer. Such a transaction is
	// not brief.
	usualCapacity = 4096
	maxCapacity   = 16_384
	brief         = 50 * time.Millisecond

	// calmFactor times the duration of a failure has to be calm after it.
	calmFactor  = 16
	maxCooldown = 30 * time.Second

	// shrinkFactor is by how much the first failure makes the next transaction smaller. Another
	// failure soon after makes it a single message.
	shrinkFactor = 8

	// Waits for locks are about as long as a transaction. PostgreSQL looks for deadlocks after 1 s.
	minLockWait = 20 * time.Millisecond
	maxLockWait = 500 * time.Millisecond
	patience    = 2 * time.Second
)

func newSizing(most, usual int) sizing {
	return sizing{most: most, usual: usual, capacity: min(firstCapacity, most), typical: 100 * time.Millisecond}
}

// applied records a transaction that was not refused. A small one proves nothing about larger ones.
func (s *sizing) applied(messages int, took, timeout time.Duration) {
	s.typical += (took - s.typical) / 8
	s.cooldown = max(s.cooldown-took, 0)
	switch {
	case took > timeout/4:
		s.capacity = max(messages/2, min(s.capacity, firstCapacity))
	case took > 2*brief && messages > s.usual:
		s.capacity = s.usual
	case s.capacity >= s.usual && took > brief:
	case took < timeout/16 && s.cooldown == 0 && messages > s.capacity/2:
		s.capacity = min(s.capacity*2, s.most)
	}
}

// tooMany records a transaction that ran out of time. There is no cooldown: the next quick
// transactions double the size again.
func (s *sizing) tooMany(messages int) { s.capacity = max(messages/2, 1) }

// tooLarge records a transaction that did not fit. The capacity grows again, because the next messages may
// be smaller, once the cost of this failure was earned.
func (s *sizing) tooLarge(messages int, took time.Duration) {
	s.capacity = max(messages/2, 1)
	s.cooldown = min(s.cooldown+calmFactor*took, maxCooldown)
}

// refused records a failure that contention may have caused. A second one during the cooldown makes
// it a single message at once: throughput must not fall below that of single messages (L1), and
// each further large transaction that fails costs as much as all its messages.
func (s *sizing) refused(messages int, took time.Duration) {
	if s.cooldown > 0 {
		s.capacity = 1
	} else {
		s.capacity = max(min(messages, s.capacity)/shrinkFactor, 1)
	}
	s.cooldown = min(s.cooldown+calmFactor*took, maxCooldown)
}

// lockWait returns how long a transaction may wait for one lock. The wait grows with each refusal
// of a single message. Zero means no limit: beyond patience, the database has found any deadlock. chance, in [0, 1), makes one of two transactions that wait for each other give up
// first.
func (s *sizing) lockWait(refusals int, chance float64) time.Duration {
	d := min(max(s.typical, minLockWait), maxLockWait)
	d = (d/2 + time.Duration(chance*float64(d))) << min(refusals, 16)
	if d > patience {
		return 0
	}
	return d
}

// share divides the capacity of a transaction. Partitions with few ready messages take all of theirs,
// the others take equal parts. capacity is at least one message of each.
func share(ready []int, capacity int) []int {
	fewest := make([]int, len(ready))
	for i := range fewest {
		fewest[i] = i
	}
	slices.SortFunc(fewest, func(i, j int) int { return cmp.Compare(ready[i], ready[j]) })
	takes := make([]int, len(ready))
	for n, i := range fewest {
		takes[i] = min(ready[i], capacity/(len(ready)-n))
		capacity -= takes[i]
	}
	return takes
}
