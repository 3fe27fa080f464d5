package tenures

import (
	"sync"

	"github.com/epochfence/epochfence/epoch"
)

// This file decides which position a source publishes, and notices one that was published under
// another sink's claim (R8). The source decides when to publish.

// Position decides which position of a tenure is published to the source, where operators look. It
// keeps the position that the group had committed through other clients until ours has passed it
// (R8). The zero Position has nothing to publish. Its methods are safe for concurrent use.
type Position struct {
	mu        sync.Mutex
	at        epoch.Fence
	known     bool
	published *epoch.Offset // what the source has, as far as we know
	learnt    bool          // theirs has been read
	theirs    *epoch.Offset // the position that others had committed, until ours has passed it
	claimed   *epoch.Offset // the position when the sink was about to claim the partition; nil for the first claim
	said      bool          // it was logged that theirs is ignored

	before    *Claimed // under which a process of ours had published
	elsewhere bool     // the sink does not have it
}

// Claimed is the claim under which a position was published. The id may be zero if it is unknown.
type Claimed struct {
	Epoch epoch.Epoch
	Claim epoch.ClaimID
	Next  epoch.Offset
}

// LearnClaim records the claim under which a process of ours had published a position, as read in Learn.
func (p *Position) LearnClaim(before Claimed) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.before = &before
}

// Compare compares the fence that the sink is about to claim with what was published before. Epochs only
// grow, so a sink that has had the claim has its epoch or a higher one. Only if the claim of seen is then
// replaced, no claim of this sink can have come between the two reads.
func (p *Position) Compare(seen epoch.Fence) {
	p.mu.Lock()
	defer p.mu.Unlock()
	b := p.before
	p.elsewhere = b != nil && (b.Epoch > seen.Epoch || b.Epoch == seen.Epoch && b.Claim != (epoch.ClaimID{}) && b.Claim != seen.Claim)
}

// PublishedElsewhere returns epoch, claim and position that were published for the group before, if the
// sink did not have that claim when the fence was read that the present claim has replaced.
func (p *Position) PublishedElsewhere() (at epoch.Fence, is bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.elsewhere {
		return epoch.Fence{}, false
	}
	return epoch.Fence{Epoch: p.before.Epoch, Claim: p.before.Claim, Next: p.before.Next}, true
}

// Mirror implements [consumer.Tenure].
func (p *Position) Mirror(at epoch.Fence) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.at, p.known = at, true
}

// Newest returns the fence of the last call of Mirror, if there was one.
func (p *Position) Newest() (at epoch.Fence, known bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.at, p.known
}

// Claims records the fence that the sink is about to claim.
func (p *Position) Claims(seen epoch.Fence) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.claimed = nil
	if seen.Epoch > 0 {
		next := seen.Next // not the whole fence: it is large, and there is one for each partition
		p.claimed = &next
	}
}

// Unpublished returns the newest fence if the source does not have its position.
func (p *Position) Unpublished() (at epoch.Fence, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.at, p.known && (p.published == nil || *p.published != p.at.Next)
}

// Learn calls theirs, until it has succeeded, for the position that others had committed before.
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

// Theirs returns the position that others had committed, if the position of at must not replace it.
// It must not if the partition was never claimed, or if at is below theirs. A position that an
// operator has set replaces theirs in any case.
func (p *Position) Theirs(at epoch.Fence) (theirs epoch.Offset, stays bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.theirs == nil || at.SetUnder > 0 || at.Epoch > 0 && at.Next >= *p.theirs {
		return 0, false
	}
	return *p.theirs, true
}

// ToSay reports, once, that the position of others is ignored: it is not where ours is.
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

// NotHeeded is the log line for ToSay, and Remedy says what an operator can do.
const (
	NotHeeded = "somebody has changed the committed position of the group, which has no effect: the position in the sink counts"
	Remedy    = "to begin elsewhere, set the position with epochfence rewind"
)

// Published records that the source has accepted a position of ours.
func (p *Position) Published(at epoch.Offset) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.published, p.theirs = &at, nil
}
