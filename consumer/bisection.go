package consumer

import (
	"time"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/waits"
)

// This file decides how many messages of a partition the next transaction takes after one has
// failed, and how long it waits, until one message is alone. It blames nobody: what a failure means,
// and which message is blamed, verdict.go decides; how many messages all partitions take together,
// sizing.go.

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
	streak   int          // how many steps go alone; doubles with each message that needs its own transaction
	attempts int          // of the first message, alone, or of OnFailure for it
	failed   error        // why the first message goes to OnFailure, if it does
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
	n := max(t.messages, 1)
	if (v.action == claimAgain || v.action == giveUp) && v.finding != nothing {
		b.doubts++
	}
	switch v.finding {
	case died:
		b.narrow(1, 0)
		b.deaths++
		b.first = t.first
	case oneOfThem:
		b.narrow(n, v.at)
	case tooMany:
		b.most = max(n/2, 1)
		b.narrow(n, -1)
	case needsOwn:
		b.separate(n, v.at)
	case transient:
		return b.postpone(n, handler, shared)
	case attempt, lastAttempt:
		b.narrow(1, 0) // alone from now on, even if this transaction had more
		b.attempts++
		b.first = t.first
		if v.finding == lastAttempt {
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
