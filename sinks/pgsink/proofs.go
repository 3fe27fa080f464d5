package pgsink

import (
	"sync"
	"time"

	"github.com/epochfence/epochfence/epoch"
)

// proofLife is how long after a claim or an advance the fence is taken to be as that
// has left it, so that the transaction that follows is spared the early look. All that
// comes of a mistake is that the handler runs in vain: the check at the end refuses it.
const proofLife = 100 * time.Millisecond

// proofs are where claims and advances of this process have left fences. The zero value
// is none.
type proofs struct {
	mu   sync.Mutex
	left map[epoch.Partition]proof
}

type proof struct {
	claim epoch.ClaimID
	next  epoch.Offset
	at    time.Time // before the statement was sent that has shown it
}

// claimed notes what a claim that was begun then has returned.
func (p *proofs) claimed(f epoch.Fence, begun time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.put(f.Partition, proof{f.Claim, f.Next, begun})
}

// advanced notes advances that were committed, and sent then.
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

// spend returns until when as is known not to be refused: the zero time, or one that has
// passed, where it is not. The proofs are gone with it, and only a success brings new ones.
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
