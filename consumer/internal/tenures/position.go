package tenures

import (
	"sync"

	"github.com/epochfence/epochfence/epoch"
)

// Position is a tenure's position on its way to the source, for operators who look
// there. It keeps what the group had committed through others until ours has
// passed it (R8). The zero Position has nothing to publish yet. Its methods are
// safe for concurrent use.
type Position struct {
	mu        sync.Mutex
	at        epoch.Fence
	known     bool
	published *epoch.Offset // what the source has, as far as we know
	learnt    bool          // what others had committed
	theirs    *epoch.Offset // that, until ours has passed it
	claimed   *epoch.Offset // where it was when the sink was about to claim it, if it had been claimed before
	said      bool          // that theirs is not where ours is
}

// Mirror is a [consumer.Tenure]'s.
func (p *Position) Mirror(at epoch.Fence) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.at, p.known = at, true
}

// Newest returns the fence that Mirror was last called with, if it was.
func (p *Position) Newest() (at epoch.Fence, known bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.at, p.known
}

// Claims notes the fence that the sink is about to claim.
func (p *Position) Claims(seen epoch.Fence) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.claimed = nil
	if seen.Epoch > 0 {
		next := seen.Next // alone: a fence is large, and there is one for each partition
		p.claimed = &next
	}
}

// Unpublished is Newest, if the source has not been told of its position.
func (p *Position) Unpublished() (at epoch.Fence, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.at, p.known && (p.published == nil || *p.published != p.at.Next)
}

// Learn asks, unless it was answered before, what others had committed when the
// tenure began.
func (p *Position) Learn(theirs func() (at epoch.Offset, ok bool, err error)) error {
	p.mu.Lock()
	learnt := p.learnt
	p.mu.Unlock()
	if learnt {
		return nil
	}
	at, ok, err := theirs()
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.learnt = true
	if ok {
		p.theirs = &at
	}
	return nil
}

// Theirs returns what others had committed, if the position of a fence may not
// take its place: it is below, and no person has set it, or the partition was never
// claimed.
func (p *Position) Theirs(at epoch.Fence) (theirs epoch.Offset, stays bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.theirs == nil || at.SetUnder > 0 || at.Epoch > 0 && at.Next >= *p.theirs {
		return 0, false
	}
	return *p.theirs, true
}

// ToSay reports, once, that what others had committed is not heeded: it is above a
// position of ours, or not where the fence was that we claimed.
func (p *Position) ToSay(at epoch.Fence) (theirs epoch.Offset, say bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.theirs == nil || p.said {
		return 0, false
	}
	above := at.Epoch > 0 && at.Next < *p.theirs
	elsewhere := p.claimed != nil && *p.claimed != *p.theirs
	p.said = above || elsewhere
	return *p.theirs, p.said
}

// NotHeeded is the line in the log for it, and Remedy what an operator can do.
const (
	NotHeeded = "others have set the position that the group has committed, and that changes nothing: the sink's position counts"
	Remedy    = "to begin elsewhere, set the position with epochfence rewind"
)

// Published notes that the source has taken a position of ours.
func (p *Position) Published(at epoch.Offset) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.published, p.theirs = &at, nil
}
