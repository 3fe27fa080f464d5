package pgsink

import (
	"sync"
	"time"

	"github.com/epochfence/epochfence/epoch"
)

// This file remembers for how long a claim or an advance of this process proves that the next
// transaction may skip the early check. The check at the end needs no proof.

// proofLife is how long a claim or an advance is trusted, so that the next transaction skips
// look_early. If the fence has changed since, the check at the end refuses the transaction.
const proofLife = 100 * time.Millisecond

// proofs are the fences as claims and advances of this process have left them.
type proofs struct {
	mu   sync.Mutex
	left map[epoch.Partition]proof
}

type proof struct {
	claim epoch.ClaimID
	next  epoch.Offset
	at    time.Time // just before the statement that proves it was sent
}

func (p *proofs) claimed(f epoch.Fence, begun time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.put(f.Partition, proof{f.Claim, f.Next, begun})
}

func (p *proofs) advanced(as *advances, sent time.Time) {
	if as.held {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, a := range as.list {
		p.put(a.Partition, proof{a.Claim, a.To, sent})
	}
}

func (p *proofs) put(of epoch.Partition, is proof) {
	if p.left == nil {
		p.left = map[epoch.Partition]proof{}
	}
	p.left[of] = is
}

// spend returns until when as is known not to be refused. If that is unknown, the time is zero or
// has passed. spend also removes the proofs: only a success brings new ones.
func (p *proofs) spend(as *advances) (until time.Time) {
	if as.held {
		return time.Time{}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	until = time.Now().Add(proofLife)
	for _, a := range as.list {
		is := p.left[a.Partition]
		delete(p.left, a.Partition)
		if is.claim != a.Claim || is.next != a.From {
			until = time.Time{}
		} else if ends := is.at.Add(proofLife); ends.Before(until) {
			until = ends
		}
	}
	return until
}
