package kafkasource

import (
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// contact watches for signs of life between the group's coordinator and us, on
// our own monotonic clock (R11). A member that has not been acknowledged for
// the session timeout is out of the group as far as the others are concerned,
// whether it heard of it or not, and kgo says so late: in the classic protocol
// when its retries are used up, under KIP-848 never.
//
// What counts is when an acknowledged heartbeat was sent, since the coordinator
// cannot have begun to count sooner. The hook does not show what the answer
// was. Most errors end the membership anyhow; those that say "not I, ask
// another" have kgo look for the coordinator next. So an answer counts once
// kgo has gone on to the next heartbeat without doing that, which makes contact
// look up to one interval older than it is.
type contact struct {
	classic  lease
	lose     func(silent time.Duration) // contact is lost
	regained func()                     // there is an answer again: find out whether it was a yes, between checkBegins and checkEnds

	mu      sync.Mutex
	nextGen lease
	speaks  protocol
	last    time.Time // when what was acknowledged last was sent; zero before the first
	pending time.Time // the same of a newer answer that may not have been a yes
	synced  time.Time // when the SyncGroup that was answered last was sent
	lost    bool
	owed    bool // contact was back before all was lost that had to be: it is to be granted anew
	checks  int  // that are under way
	timer   *time.Timer
	stopped bool
}

type protocol int

const (
	classicProtocol protocol = iota
	nextGenProtocol          // KIP-848
)

// lease is the lease under the protocol that is being spoken.
func (c *contact) lease() lease {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.leaseLocked()
}

// speaking is lease, with the protocol.
func (c *contact) speaking() (lease, protocol) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.leaseLocked(), c.speaks
}

func (c *contact) leaseLocked() lease {
	if c.speaks == nextGenProtocol {
		return c.nextGen
	}
	return c.classic
}

// overdue reports whether contact is lost, without waiting for the timer: a
// process that was frozen may get here first. It does what the timer would, so that
// regained is called when contact is back. What lose locks must not be locked.
func (c *contact) overdue() bool {
	c.expire()
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lost || c.silenceLocked() >= c.leaseLocked().silence()
}

func (c *contact) silenceLocked() time.Duration {
	if c.last.IsZero() {
		return 0
	}
	return time.Since(c.last)
}

var (
	keyHeartbeat        = (&kmsg.HeartbeatRequest{}).Key()
	keySyncGroup        = (&kmsg.SyncGroupRequest{}).Key()
	keyNextGenHeartbeat = (&kmsg.ConsumerGroupHeartbeatRequest{}).Key()
	keyFindCoordinator  = (&kmsg.FindCoordinatorRequest{}).Key()
)

// OnBrokerE2E implements [kgo.HookBrokerE2E].
func (c *contact) OnBrokerE2E(_ kgo.BrokerMetadata, key int16, e2e kgo.BrokerE2E) {
	switch key {
	case keyFindCoordinator:
		c.discardPending()
	case keyHeartbeat, keySyncGroup:
		if e2e.Err() == nil {
			sent := time.Now().Add(-e2e.DurationE2E())
			if key == keySyncGroup {
				c.syncedAt(sent)
			}
			c.acknowledged(classicProtocol, sent)
		}
	case keyNextGenHeartbeat:
		if e2e.Err() == nil {
			c.acknowledged(nextGenProtocol, time.Now().Add(-e2e.DurationE2E()))
		}
	}
}

func (c *contact) acknowledged(p protocol, sent time.Time) {
	c.mu.Lock()
	c.speaks = p
	if c.stopped {
		c.mu.Unlock()
		return
	}
	if c.last.IsZero() {
		c.last = sent
		c.arm()
	}
	c.count(c.pending)
	c.pending = sent
	ask := (c.lost || c.owed) && c.checks == 0
	c.mu.Unlock()
	if ask {
		c.regained()
	}
}

// count takes what was sent at that time for acknowledged.
func (c *contact) count(sent time.Time) {
	if sent.After(c.last) {
		c.last = sent
		c.arm()
	}
}

// discardPending: the newest answer was not a yes.
func (c *contact) discardPending() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pending = time.Time{}
}

// confirmAlive notes that the coordinator has answered yes to what was sent then.
func (c *contact) confirmAlive(sent time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.count(sent)
}

func (c *contact) syncedAt(sent time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.synced = sent
}

// joined says that kgo has completed a rebalance. In the classic protocol the last answer to
// a SyncGroup is the one that ended it, a yes: kgo joins again only after it has told of
// this. Under KIP-848 nothing says which heartbeat's answer it was, and one that was sent since
// may have been answered with a no.
func (c *contact) joined() {
	c.mu.Lock()
	sent := c.synced
	c.mu.Unlock()
	c.confirmAlive(sent)
	c.regain()
}

// regain ends the loss of contact if there was a yes since, and reports whether there is
// contact. Whoever calls it grants anew what is held: nobody else does.
func (c *contact) regain() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lost = c.lost && c.silenceLocked() >= c.leaseLocked().silence()
	c.owed = c.owed && c.lost
	return !c.lost
}

// owes notes that something was lost after contact was back, and reports whether it
// is: regained is to be called then. Otherwise it will be.
func (c *contact) owes() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.owed = c.owed || !c.lost
	return !c.lost
}

// isLost reports whether lose was called, and regain has not been since.
func (c *contact) isLost() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lost
}

// answered is when the request was sent that was answered last, with a yes or a no; zero if
// that was "not I, ask another".
func (c *contact) answered() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.pending
}

// checkBegins notes that somebody finds out whether there is contact. Until checkEnds
// no answer asks for that.
func (c *contact) checkBegins() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.checks++
}

func (c *contact) checkEnds() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.checks--
}

// arm sets the timer to when contact will have been lost.
func (c *contact) arm() {
	if c.stopped {
		return
	}
	left := c.leaseLocked().silence() - c.silenceLocked()
	if c.timer == nil {
		c.timer = time.AfterFunc(left, c.expire)
		return
	}
	c.timer.Reset(left)
}

func (c *contact) expire() {
	c.mu.Lock()
	silent := c.silenceLocked()
	if c.stopped || c.lost || silent < c.leaseLocked().silence() {
		c.mu.Unlock()
		return
	}
	c.lost = true
	c.mu.Unlock()
	c.lose(silent)
}

// heartbeatDue reports whether a heartbeat of our own is due: kgo sends none while it
// is joining, which in the classic protocol takes as long as the slowest member.
// Partitions that are retained meanwhile (cooperative) need one.
func (c *contact) heartbeatDue() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.speaks == classicProtocol && c.silenceLocked() > c.classic.patience()/3
}

// left: the process is not in the group any more, by itself. Contact is counted anew when it
// joins again.
func (c *contact) left() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last, c.pending, c.synced = time.Time{}, time.Time{}, time.Time{}
	c.lost, c.owed = false, false
	if c.timer != nil {
		c.timer.Stop()
		c.timer = nil
	}
}

func (c *contact) stop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stopped = true
	if c.timer != nil {
		c.timer.Stop()
	}
}
