package kafkasource

import (
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// This file decides when contact with the coordinator is lost (R11, R13). membership.go ends the
// tenures then.

// contact measures how long the group's coordinator has not acknowledged this member, on the
// process's monotonic clock (R11). After the session timeout the group has removed the member, even
// if the member does not hear of it. kgo reports that late: in the classic protocol when its
// retries are used up, under KIP-848 never.
//
// Contact counts from the time when an acknowledged heartbeat was sent, because the coordinator
// cannot have begun to count earlier. The hook does not show whether an answer was an error. Most
// errors end the membership anyway. After an error such as NOT_COORDINATOR, kgo sends
// FindCoordinator next. So an answer counts only when the next answer comes without a
// FindCoordinator in between. Contact therefore looks up to one interval older than it is.
type contact struct {
	classic  lease
	lose     func(silent time.Duration) // called when contact is lost
	regained func()                     // called for the next answer: checks it, between checkBegins and checkEnds

	mu        sync.Mutex
	nextGen   lease
	speaks    protocol
	last      time.Time // when the last acknowledged request was sent; zero before the first
	pending   time.Time // when the request of a newer answer was sent, which may be an error
	synced    time.Time // when the last answered SyncGroup was sent
	lost      bool
	regainDue bool // contact was back before all tenures were lost: their partitions must be granted again
	checks    int  // under way
	timer     *time.Timer
	stopped   bool
}

type protocol int

const (
	classicProtocol protocol = iota
	nextGenProtocol          // KIP-848
)

func (c *contact) lease() lease {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.leaseLocked()
}

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

// overdue reports whether contact is lost. It does not wait for the timer, because a process that
// was frozen may call it before the timer fires. It does what the timer would do, so that regained
// is called later. The caller must not hold the locks that lose takes.
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
	ask := (c.lost || c.regainDue) && c.checks == 0
	c.mu.Unlock()
	if ask {
		c.regained()
	}
}

// count records that a request sent at that time was acknowledged.
func (c *contact) count(sent time.Time) {
	if sent.After(c.last) {
		c.last = sent
		c.arm()
	}
}

// discardPending discards the newest answer, which was an error.
func (c *contact) discardPending() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pending = time.Time{}
}

// confirmAlive records that the coordinator has acknowledged a request that was sent then.
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

// joined is called when kgo has completed a rebalance. In the classic protocol, the last answer to
// a SyncGroup has completed it and was no error, because kgo joins again only after this call.
// Under KIP-848 it is not known which heartbeat has completed it, and a later heartbeat may have
// failed.
func (c *contact) joined() {
	c.mu.Lock()
	sent := c.synced
	c.mu.Unlock()
	c.confirmAlive(sent)
	c.regain()
}

// regain ends the loss of contact if a request was acknowledged since, and reports whether there is
// contact. The caller must then grant the held partitions again, because nobody else does.
func (c *contact) regain() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lost = c.lost && c.silenceLocked() >= c.leaseLocked().silence()
	c.regainDue = c.regainDue && c.lost
	return !c.lost
}

// claimRegain is called after tenures were lost. It returns true if contact is back already: then the
// caller must call regained. Otherwise regained will be called when contact is back.
func (c *contact) claimRegain() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.regainDue = c.regainDue || !c.lost
	return !c.lost
}

// isLost reports whether contact was lost and not regained since.
func (c *contact) isLost() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lost
}

// answered returns when the request of the newest answer was sent. The answer may be an error. It
// returns zero if a FindCoordinator followed.
func (c *contact) answered() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.pending
}

// checkBegins notes that a check of contact is under way. Until checkEnds, answers do not call
// regained.
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

// heartbeatDue reports whether the source must send a heartbeat. kgo sends none while it joins,
// which takes as long as the slowest member in the classic protocol. Partitions that the member
// keeps meanwhile (cooperative) need heartbeats.
func (c *contact) heartbeatDue() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.speaks == classicProtocol && c.silenceLocked() > c.classic.patience()/3
}

// left is called when the process has left the group by itself. Contact starts anew when it joins
// again.
func (c *contact) left() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last, c.pending, c.synced = time.Time{}, time.Time{}, time.Time{}
	c.lost, c.regainDue = false, false
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
