package consumer

import (
	"cmp"
	"slices"
	"time"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/waits"
)

// This file decides how many messages the next transaction takes: sizing, for all partitions that share it, from
// what the transactions before it cost, and how long it may wait for a lock (L1); bisection, for a partition
// whose transaction has failed, until one message is alone. It blames nobody: what a failure means, verdict.go
// decides.

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
	first    int           // what the first one takes
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
	return sizing{most: most, usual: usual, first: min(firstCapacity, most), capacity: min(firstCapacity, most), typical: 100 * time.Millisecond}
}

// rounds is how many messages each of the calls that run beside each other has in the first transaction.
const rounds = 2

// beside returns s for transactions of which n calls run at a time. Handlers that wait beside each other do not
// make a transaction slower, so fewer messages would not make it faster.
func (s sizing) beside(n int) sizing {
	s.first = min(max(s.first, rounds*n), s.most)
	s.capacity = s.first
	return s
}

// applied records a transaction that was not refused. A small one proves nothing about larger ones.
func (s *sizing) applied(messages int, took, timeout time.Duration) {
	s.typical += (took - s.typical) / 8
	s.cooldown = max(s.cooldown-took, 0)
	switch {
	case took > timeout/4:
		s.capacity = max(messages/2, min(s.capacity, s.first))
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
// of a single message. Zero, no limit, is returned beyond patience: by then the database has found any deadlock. chance, in [0, 1), makes one of two transactions that wait for each other give up
// first.
func (s *sizing) lockWait(refusals int, chance float64) time.Duration {
	d := min(max(s.typical, minLockWait), maxLockWait)
	d = (d/2 + time.Duration(chance*float64(d))) << min(refusals, 16)
	if d > patience {
		return 0
	}
	return d
}

// width decides how many transactions of a committer's shared lane are open at a time. Those of one process may
// wait for each other's rows, or deadlock, where one after another would not. Then there are half as many, until
// the time that the failure cost was earned by calm transactions: at worst it costs one part in calmBeside.
type width struct {
	most, now int
	cooldown  time.Duration
}

const calmBeside = 64

// refused records that a transaction beside others was refused.
func (w *width) refused(took time.Duration) {
	w.now = max(w.now/2, 1)
	w.cooldown = min(calmBeside*took, maxCooldown)
}

func (w *width) applied(took time.Duration) {
	if w.cooldown = max(w.cooldown-took, 0); w.cooldown == 0 {
		w.now = min(2*w.now, w.most)
	}
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

// contended is the first wait after a transient failure of a single message: about as long
// as a transaction of another process takes.
const contended = 2 * time.Millisecond

// bisection narrows a failed batch down to one message. It outlives the claim for as long
// as the position does not move.
type bisection struct {
	suspects int          // number of messages, from the position on, that may be at fault
	try      int          // how many of them go into the next transaction
	most     int          // more messages than this take too long; zero for no limit
	step     int          // if set, the value of try until no suspects are left
	again    bool         // suspects have failed together again: no call of theirs runs beside another
	streak   int          // how many steps go alone; doubles with each message that needs its own transaction
	attempts int          // of the first message, alone, or of OnFailure for it
	failed   error        // why the first message goes to OnFailure or is deferred, if it does
	first    epoch.Offset // the first message, if it has attempts
	doubts   int          // transactions in a row that were in doubt
	deaths   int          // likewise, of the first message alone
	wait     *waits.Backoff
	refusals int            // transient failures in a row
	pause    *waits.Backoff // after transient failures
}

func newBisection(retryMin, retryMax time.Duration) bisection {
	return bisection{wait: waits.New(retryMin, retryMax), pause: waits.New(min(retryMin, contended), retryMax)}
}

// active reports whether the next transaction must not be shared, because it would fail again.
func (b *bisection) active() bool { return b.suspects > 0 }

// size returns how many of n messages the next transaction takes: one, if it calls OnFailure for
// the first message instead of the handler.
func (b *bisection) size(n int) int {
	if b.failed != nil {
		return min(n, 1)
	}
	return min(b.try, n)
}

// learn records what a transaction taught about the messages of t, and returns how long to wait
// before the next one. handler reports that the failure was an error of a handler; shared, that the
// transaction had messages of other partitions.
func (b *bisection) learn(v verdict, t trial, handler, shared bool) (in time.Duration) {
	b.again = b.active() && (b.again || v.finding == oneOfThem)
	n := max(t.messages, 1)
	if (v.action == claimAgain || v.action == replaced) && v.finding != nothing {
		b.doubts++
	}
	switch v.finding {
	case died:
		b.narrow(1, 0)
		b.deaths++
		b.first = t.first
	case oneOfThem:
		if b.narrow(n, v.at); shared && v.at < 0 && v.action == retry { // perhaps one of another partition
			b.try = n
			b.bound()
		}
	case tooMany:
		b.most = max(n/2, 1)
		b.narrow(n, -1)
	case needsOwn:
		b.separate(n, v.at)
	case transient:
		return b.postpone(n, handler, shared)
	case attempt, lastAttempt, deferred:
		b.narrow(1, 0) // alone from now on, even if this transaction had more
		b.attempts++
		b.first = t.first
		if v.finding != attempt {
			b.attempts, b.deaths, b.failed = 0, 0, v.err
			return 0
		}
		return b.wait.Next()
	}
	return 0
}

// maxStreak limits how many messages go alone because one had to.
const maxStreak = 1024

// separate handles a message that needs a transaction of its own: the one at index at, or the whole
// batch of n messages if at is negative. If that happens repeatedly, more and more messages go one
// by one, so that few transactions are begun in vain.
func (b *bisection) separate(n, at int) {
	if at > 0 { // the messages before it do not need their own
		b.suspects, b.try, b.step = at, at, at
		b.bound()
		return
	}
	b.streak = min(max(2*b.streak, 1), maxStreak)
	b.step = 1
	if at < 0 {
		b.step = n
	}
	b.suspects, b.try = b.streak*b.step, b.step
	b.bound()
}

// narrow handles the failure of n messages together. at is the index at fault, or negative.
func (b *bisection) narrow(n, at int) {
	b.step = 0
	if at >= 0 {
		b.suspects, b.try = at+1, max(at, 1)
	} else {
		b.suspects, b.try = n, max(n/2, 1)
	}
	b.bound()
}

// postpone handles a transient failure of n messages, such as a deadlock, which is no message's
// fault.
//
// The next shared transaction is already smaller; see [sizing]. But a partition whose own handler
// fails like this twice in a row delays the others, because it may be waiting for a lock that is
// held for long. It continues alone, one message at a time.
func (b *bisection) postpone(n int, handler, shared bool) (in time.Duration) {
	single := n == 1 && !shared
	if handler || single {
		b.refusals++
	}
	if !b.active() && b.refusals < 2 {
		return 0
	}
	b.suspects, b.try = max(b.suspects, 1), 1
	if !single {
		return 0
	}
	return b.pause.Next()
}

// alone makes each of the next n messages go by itself. One of them has hung a call, and the next
// hang must show which one it was.
func (b *bisection) alone(n int) {
	b.suspects, b.try, b.most = max(b.suspects, n), 1, 1
}

// passed records that the first n messages are applied. The remaining suspects are halved again, or
// tried in steps as before. Attempts belong to the first message, so the next one begins with none.
func (b *bisection) passed(n int) {
	b.suspects = max(b.suspects-n, 0)
	if b.try = max(b.suspects/2, 1); b.step > 0 && b.suspects > 0 {
		b.try = b.step
	} else if b.step == 0 && n > 1 {
		b.streak = 0
	}
	if b.suspects == 0 {
		b.step = 0
	}
	b.attempts = 0
	b.refusals = 0
	b.doubts, b.deaths = 0, 0
	b.failed = nil
	b.wait.Reset()
	b.pause.Reset()
	if b.suspects == 0 {
		b.most = 0
	}
	b.bound()
}

// meets sets the offset of the first message. If the message that had failed attempts was deleted
// from the log, its attempts do not count against this one.
func (b *bisection) meets(first epoch.Offset) {
	if first != b.first {
		b.attempts, b.deaths = 0, 0
		b.failed = nil
	}
}

// halted resets the first message, which is tried again some time later, still alone.
func (b *bisection) halted() {
	b.suspects, b.try, b.step = max(b.suspects, 1), 1, 0
	b.attempts, b.deaths = 0, 0
	b.failed = nil
	b.wait.Reset()
}

// bound keeps the size below what has taken too long, until no suspects are left.
func (b *bisection) bound() {
	if b.most > 0 {
		b.try = min(b.try, b.most)
	}
}
