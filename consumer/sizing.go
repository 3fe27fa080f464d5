package consumer

import (
	"cmp"
	"slices"
	"time"
)

// sizing decides how many messages the next transaction of a committer's shared
// lane takes in all. It is arithmetic on what the transactions before it cost.
//
// A transaction of many messages may fail where each of them alone would not: it
// deadlocks with another process that touches the same rows, it uses up the
// lock table, it takes too long. So what such a failure has cost, in time, has
// to be earned first by calm transactions of a smaller size, many times over, before the
// size grows again. That bounds what is lost by trying, whatever the reason:
// throughput stays close to that of one message in each transaction where no
// more than that can be had.
type sizing struct {
	most    int           // Options.MaxBatch
	usual   int           // what a brief transaction alone may exceed
	room    int           // what the next one takes
	owed    time.Duration // of calm, before it grows
	typical time.Duration // that a transaction takes which commits
}

const (
	// firstRoom is what the first transaction takes at most, as nothing is known of
	// the handler. It is also where slowness stops to make transactions smaller that
	// come to an end in time: if it is the commit that is slow, and not the messages,
	// taking fewer of them does not help.
	firstRoom = 256

	// usualRoom and mostRoom are for Options that do not say MaxBatch. Where handlers write
	// a set at once, what begins and ends a transaction still costs a good part of one of 4,096
	// messages: 16,384 made a tenth to two fifths more of them in bench. Where they write
	// messages one by one it costs next to nothing, and locks would be held for the longer:
	// there a transaction is not brief.
	usualRoom = 4096
	mostRoom  = 16_384
	brief     = 50 * time.Millisecond

	// calmFactor is how many times as long as a failure took there has to be calm
	// after it.
	calmFactor = 16
	maxOwed    = 30 * time.Second

	// shrinkFactor is by how much the first failure makes the next transaction
	// smaller. One that follows soon after makes it a single message.
	shrinkFactor = 8

	// Waits for locks are about as long as a transaction takes, and within these
	// bounds: PostgreSQL looks for deadlocks after 1 s.
	minLockWait = 20 * time.Millisecond
	maxLockWait = 500 * time.Millisecond
	patience    = 2 * time.Second
)

func newSizing(most, usual int) sizing {
	return sizing{most: most, usual: usual, room: min(firstRoom, most), typical: 100 * time.Millisecond}
}

// applied: a transaction of so many messages was not refused. One that has left much
// of its room says nothing about one that takes more.
func (s *sizing) applied(messages int, took, timeout time.Duration) {
	s.typical += (took - s.typical) / 8
	s.owed = max(s.owed-took, 0)
	switch {
	case took > timeout/4:
		s.room = max(messages/2, min(s.room, firstRoom))
	case took > 2*brief && messages > s.usual:
		s.room = s.usual
	case s.room >= s.usual && took > brief: // large enough
	case took < timeout/16 && s.owed == 0 && messages > s.room/2:
		s.room = min(s.room*2, s.most)
	}
}

// tooMany: a transaction of so many messages did not come to an end in time.
func (s *sizing) tooMany(messages int) { s.room = max(messages/2, 1) }

// tooLarge: a transaction of so many messages did not fit. It grows again, as the next messages may be
// smaller, but not before what this has cost was earned.
func (s *sizing) tooLarge(messages int, took time.Duration) {
	s.room = max(messages/2, 1)
	s.owed = min(s.owed+calmFactor*took, maxOwed)
}

// refused: a transaction of so many messages failed for a reason that its size
// may have been.
func (s *sizing) refused(messages int, took time.Duration) {
	if s.owed > 0 {
		s.room = 1
	} else {
		s.room = max(min(messages, s.room)/shrinkFactor, 1)
	}
	s.owed = min(s.owed+calmFactor*took, maxOwed)
}

// lockWait is how long a transaction may wait for one lock, which is longer after
// each refusal of a message that is alone. It is not bounded where the database has
// long found out whether it is a deadlock. chance is between 0 and 1: of two that
// wait for each other, one gives up first.
func (s *sizing) lockWait(refusals int, chance float64) (d time.Duration, bounded bool) {
	d = min(max(s.typical, minLockWait), maxLockWait)
	d = (d/2 + time.Duration(chance*float64(d))) << min(refusals, 16)
	return d, d <= patience
}

// share says how much of a transaction's room each partition takes, of which so many
// messages are ready: those with few take all of theirs, the others as many as each
// other. There is room for one message of each at least.
func share(ready []int, room int) []int {
	fewest := make([]int, len(ready))
	for i := range fewest {
		fewest[i] = i
	}
	slices.SortFunc(fewest, func(i, j int) int { return cmp.Compare(ready[i], ready[j]) })
	takes := make([]int, len(ready))
	for n, i := range fewest {
		takes[i] = min(ready[i], room/(len(ready)-n))
		room -= takes[i]
	}
	return takes
}
