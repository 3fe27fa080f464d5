package memsource

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
)

// This file has what a test does to a group by hand: grants, losses, expiries, generations. Without
// it, share.go decides.

var (
	errTaken   = errors.New("memsource: taken away by the script")
	errExpired = fmt.Errorf("memsource: the member expired: %w", consumer.ErrLeaseExpired)
	errDeleted = errors.New("memsource: the group was deleted")
)

// Script stops the group from granting, draining and expiring by itself. The test does that from
// now on. Leases carry generation 1 until [Group.SetGeneration]. Call Script before members run.
func (g *Group) Script() {
	g.broker.mu.Lock()
	defer g.broker.mu.Unlock()
	g.scripted = true
	g.generation = max(g.generation, 1)
}

// SetGeneration sets the generation of leases from now on. Under zero or less, claims fail with
// [epoch.ErrNoLease].
func (g *Group) SetGeneration(n int64) {
	g.broker.mu.Lock()
	defer g.broker.mu.Unlock()
	g.generation = n
}

// Grant leases the partition to m, at the current generation. If m does not run yet, it gets the
// partition when it joins. The previous holder gets no notice: it continues until its next Confirm, or
// until [Group.Lose]. If m itself is the holder, it hears of a loss, and then of the grant.
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

// Drain asks m to give the partition back. It does not wait and sets no deadline. It concerns what
// m believes it holds, whatever the group has recorded.
func (g *Group) Drain(m *Member, topic string, n int32) {
	g.broker.mu.Lock()
	defer g.broker.mu.Unlock()
	at := g.topicPartition(topic, n)
	if t := g.leases[at]; t != nil && t.member == m {
		g.drain(t, 0)
		return
	}
	m.deliver(func() { m.each(at, func(t *tenure) { t.Revoke() }) })
}

// Lose takes the partition from m at once: its contexts end with consumer.ErrLost and the cause,
// which may be nil. It concerns what m believes it holds, and what the group has recorded.
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
	m.deliver(func() { m.each(at, func(t *tenure) { t.Lose(cause) }) })
	g.rebalance()
}

// Expire drops m from the group as if it had sent no sign of life for a term. Its partitions are
// free at once. If m is not frozen, it loses its tenures and joins again.
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
	// A member hears of its loss before another member has the partition.
	m.deliver(func() { m.member(errExpired); m.loseAll(errExpired) })
	g.resetAndRebalance()
	m.deliver(m.rejoin)
}

func (g *Group) drop(m *Member) {
	g.members = slices.DeleteFunc(g.members, func(other *Member) bool { return other == m })
	for _, t := range g.heldBy(m) {
		g.forget(t)
	}
	g.broker.notify()
}

// Delete deletes the group and creates it again under its name, as a broker does with a group that
// is empty for long. Generations start over, positions are gone, and all members have to rejoin.
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
		m.deliver(func() { m.member(errDeleted); m.loseAll(errDeleted) })
	}
	for _, m := range members {
		m.deliver(m.rejoin)
	}
}

// Confirmation is one Confirm as the group answers it.
type Confirmation struct {
	Member *Member
	Seen   epoch.Fence // as the sink returned it before
	Lease  epoch.Lease // the answer, if Err is nil
	Err    error       // consumer.ErrLost if the group has no such lease
}

// OnConfirm sets a function that is called with each answer to a Confirm before it goes out. The
// function may wait, which delays this answer, or return an error, which replaces it.
func (g *Group) OnConfirm(f func(ctx context.Context, c Confirmation) error) {
	g.broker.mu.Lock()
	defer g.broker.mu.Unlock()
	g.onConfirm = f
}
