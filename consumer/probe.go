package consumer

import (
	"time"

	"github.com/epochfence/epochfence/epoch"
)

// contended is the first wait of a message that is alone and was refused for a
// reason that passes: about as long as a transaction of somebody else's.
const contended = 2 * time.Millisecond

// probe narrows a failed batch down to the message at fault. It outlives the
// claim, for as long as the position stays where it was.
type probe struct {
	suspects int          // the fault is among so many messages from the position on
	try      int          // so many of them go into the next transaction
	most     int          // more than this takes too long; zero for no limit
	attempts int          // of the first message, alone
	given    error        // why the first message goes to OnFailure, if it does
	first    epoch.Offset // the first message, if it has attempts
	wait     retryWait
	refusals int       // in a row, for no message's fault
	pause    retryWait // after those
	still    standstill
}

// postponed: n messages failed together for a reason that was none of theirs, but
// may have been their number or their company. found says that it was met with
// among them, and shared that others' messages were in the transaction. It reports
// whether they are to be tried again at once.
//
// A shared transaction gets smaller by itself; see [sizing]. Who is met with twice
// is in its way, waiting for a lock that is held for long, say: it goes on alone,
// with its first message.
func (p *probe) postponed(n int, found, shared bool) (atOnce bool) {
	single := n == 1 && !shared
	if found || single {
		p.refusals++
	}
	if !p.active() && p.refusals < 2 {
		return true
	}
	p.suspects, p.try = max(p.suspects, 1), 1
	return !single
}

// active reports whether the next transaction must not be shared: it has failed
// before, and would take the others down with it.
func (p *probe) active() bool { return p.suspects > 0 }

// size is how many messages of n the next transaction takes.
func (p *probe) size(n int) int {
	if p.given != nil {
		return 1
	}
	return min(p.try, n)
}

// failed: n messages failed together, the one at index at, or unknown if at is
// negative.
func (p *probe) failed(n, at int) {
	if at >= 0 {
		p.suspects, p.try = at+1, max(at, 1)
	} else {
		p.suspects, p.try = n, max(n/2, 1)
	}
	p.bound()
}

// tooSlow: n messages did not come to an end in time.
func (p *probe) tooSlow(n int) {
	p.most = max(n/2, 1)
	p.failed(n, -1)
}

// passed: n messages from the front were applied.
func (p *probe) passed(n int) {
	p.suspects = max(p.suspects-n, 0)
	p.try = max(p.suspects/2, 1)
	p.attempts = 0
	p.refusals = 0
	p.given = nil
	p.wait.Reset()
	p.pause.Reset()
	p.still.moved()
	if p.suspects == 0 {
		p.most = 0
	}
	p.bound()
}

// meets: the message at the offset is the first one. If it is another than it
// was, as that has been deleted from the log, it begins with a clean sheet.
func (p *probe) meets(first epoch.Offset) {
	if first != p.first {
		p.attempts = 0
		p.given = nil
	}
}

// halted: the first message is to be tried afresh some time later, still alone.
func (p *probe) halted() {
	p.suspects, p.try = max(p.suspects, 1), 1
	p.attempts = 0
	p.given = nil
	p.wait.Reset()
}

func (p *probe) bound() {
	if p.most > 0 {
		p.try = min(p.try, p.most)
	}
}
