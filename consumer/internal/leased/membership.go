package leased

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/epochfence/epochfence/lease"
)

// Membership is the [consumer.Remover] of a source whose members are those of package lease. It is ready
// before the process has joined the group.
type Membership struct {
	Ready  func(context.Context) error // of [consumer.Rejoiner], for [lease.Options]
	joined atomic.Pointer[lease.Member]
}

// Join notes that this process has joined the group.
func (p *Membership) Join(m *lease.Member) { p.joined.Store(m) }

// Member implements [consumer.Remover]. A process that restarts registers under another id: it keeps nothing.
func (p *Membership) Member() (id string, session time.Duration, static bool) {
	m := p.joined.Load()
	if m == nil {
		return "", 0, false
	}
	return m.Registration(), m.TTL, false
}

// Remove implements [consumer.Remover]. Who may be a member may also write the registrations of others.
func (p *Membership) Remove(ctx context.Context, member, reason string) error {
	m := p.joined.Load()
	if m == nil {
		return errors.New("this process has not joined the group yet")
	}
	return m.End(ctx, member, reason)
}
