package memsource

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
)

var (
	errTaken   = errors.New("memsource: taken away by the script")
	errExpired = fmt.Errorf("memsource: the member expired: %w", consumer.ErrLeaseExpired)
	errDeleted = errors.New("memsource: the group was deleted")
)

// Script stops the group from granting, draining and expiring by itself: from
// now on the test does. Leases carry generation 1 until [Group.SetGeneration]. Call
// it before members run.
func (g *Group) Script() {
	g.broker.mu.Lock()
	defer g.broker.mu.Unlock()
	g.scripted = true
	g.generation = max(g.generation, 1)
}

// SetGeneration sets the generation that leases carry from now on. It may repeat one,
// start over, or be no lease at all (zero or less).
func (g *Group) SetGeneration(n int64) {
	g.broker.mu.Lock()
	defer g.broker.mu.Unlock()
	g.generation = n
}

// Grant leases the partition to m, under the generation as it is. If m does not run
// yet, it is granted when it joins. Whoever held the partition until now is not
// told: it continues until it asks, or until [Group.Lose]. Only a holder called m
// itself is told first that it has lost it, and then that it has it again.
func (g *Group) Grant(m *Member, topic string, n int32) {
	g.broker.mu.Lock()
	defer g.broker.mu.Unlock()
	at := g.topicPartition(topic, n)
	if !slices.Contains(g.members, m) {
		m.early = append(m.early, at)
		return
	}
	if old := g.leases[at]; old != nil {
		if old.member == m {
			g.take(old, errTaken)
		} else {
			g.forget(old)
		}
	}
	g.grant(m, at)
}

// Drain asks m to give the partition back. It does not wait and sets no
// deadline. It concerns what m believes it holds, whatever the group has
// recorded.
func (g *Group) Drain(m *Member, topic string, n int32) {
	g.broker.mu.Lock()
	defer g.broker.mu.Unlock()
	at := g.topicPartition(topic, n)
	if t := g.leases[at]; t != nil && t.member == m {
		g.drain(t, 0)
		return
	}
	m.tell(func() { m.each(at, func(t *tenure) { t.Revoke() }) })
}

// Lose takes the partition from m at once: its contexts end with
// consumer.ErrLost and the cause, which may be nil. It concerns what m believes
// it holds as well as what the group has recorded.
func (g *Group) Lose(m *Member, topic string, n int32, cause error) {
	g.broker.mu.Lock()
	defer g.broker.mu.Unlock()
	if cause == nil {
		cause = errTaken
	}
	at := g.topicPartition(topic, n)
	if t := g.leases[at]; t != nil && t.member == m {
		g.forget(t)
	}
	m.tell(func() { m.each(at, func(t *tenure) { t.Lose(cause) }) })
	g.rebalance()
}

// Expire drops m from the group as if it had not been heard of for a term. Its
// partitions are free at once. A member that is not frozen hears of it, loses
// its tenures and joins again.
func (g *Group) Expire(m *Member) {
	g.broker.mu.Lock()
	defer g.broker.mu.Unlock()
	g.expire(m)
}

func (g *Group) expire(m *Member) {
	if !slices.Contains(g.members, m) {
		return
	}
	g.drop(m)
	// Who hears of a loss hears of it before anyone else has the partition.
	m.tell(func() { m.member(errExpired); m.loseAll(errExpired) })
	g.resetAndRebalance()
	m.tell(m.rejoin)
}

// drop takes m and its leases out of the group's records.
func (g *Group) drop(m *Member) {
	g.members = slices.DeleteFunc(g.members, func(other *Member) bool { return other == m })
	for _, t := range g.heldBy(m) {
		g.forget(t)
	}
	g.broker.notify()
}

// Fence shuts m out for good: it loses what it has, and its Run ends with
// [ErrFenced], as soon as it hears of it.
func (g *Group) Fence(m *Member) {
	g.broker.mu.Lock()
	defer g.broker.mu.Unlock()
	g.drop(m)
	m.tell(func() { m.end(ErrFenced) })
	g.resetAndRebalance()
}

// Delete deletes the group and creates it again under its old name, as an
// operator does or as a broker does with a group that was empty for long:
// numbers start over, published positions are gone, and all members have to join
// again.
func (g *Group) Delete() {
	g.broker.mu.Lock()
	defer g.broker.mu.Unlock()
	members := slices.Clone(g.members)
	for _, m := range members {
		g.drop(m)
	}
	g.generation = 0
	if g.scripted {
		g.generation = 1
	}
	clear(g.positions)
	clear(g.declined)
	for _, m := range members {
		m.tell(func() { m.member(errDeleted); m.loseAll(errDeleted) })
	}
	for _, m := range members {
		m.tell(m.rejoin)
	}
}

// Confirmation is one Confirm as the group answers it.
type Confirmation struct {
	Member *Member
	Seen   epoch.Fence // what the sink said before
	Lease  epoch.Lease // the answer, if Err is nil
	Err    error       // consumer.ErrLost if the group has no such lease
}

// OnConfirm installs a function that is called with every answer to a Confirm
// before the answer goes out. It may wait, which holds the answer up while the
// world continues, and it may return an error, which replaces the answer. A nil
// function answers as the group decides.
func (g *Group) OnConfirm(f func(ctx context.Context, c Confirmation) error) {
	g.broker.mu.Lock()
	defer g.broker.mu.Unlock()
	g.onConfirm = f
}
