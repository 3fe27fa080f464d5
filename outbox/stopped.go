package outbox

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"github.com/epochfence/epochfence/epoch"
)

// target is a scope at a receiver: what a highest epoch is of.
type target struct{ receiver, scope string }

func targetOf(e Entry) target { return target{receiverOf(e.URL), e.Scope} }

// stop is a target that has seen a higher epoch than the claim's. Nothing is sent
// to it but one entry now and then, to see whether it still says so.
type stop struct {
	highest epoch.Epoch
	until   time.Time
}

// stop stops what the receiver of l has refused as stale. Whether the receiver or
// the sink is right is asked of the sink, once.
func (r *relay[TX]) stop(l *lane, highest epoch.Epoch) {
	at := targetOf(l.row.Entry)
	s := r.stopped[at]
	if s == nil {
		s = &stop{}
		r.stopped[at] = s
	}
	if s.highest != highest {
		s.highest = highest
		r.ask = append(r.ask, at)
	}
	s.until = time.Now().Add(r.o.RetryMax)
	r.retry(l, r.o.RetryMax)
}

// stoppedFor is how long a lane has to wait because its target is stopped. Of those
// whose wait is over one goes ahead.
func (r *relay[TX]) stoppedFor(l *lane) time.Duration {
	if len(r.stopped) == 0 {
		return 0
	}
	s := r.stopped[targetOf(l.row.Entry)]
	if s == nil {
		return 0
	}
	now := time.Now()
	if wait := s.until.Sub(now); wait > 0 {
		return wait
	}
	s.until = now.Add(r.o.RetryMax)
	return 0
}

// admitted notes that a target has taken an entry under our epoch.
func (r *relay[TX]) admitted(l *lane) {
	if len(r.stopped) > 0 {
		delete(r.stopped, targetOf(l.row.Entry))
	}
}

// claimHolds is called when the sink has said that the claim holds, after these targets
// have said that they know of a later one. So no later one of this partition exists: the
// sink has lost it, or the epoch is not this partition's. The first is fixed by a
// claim above it. The second must not be, or two partitions would continue for ever, each
// above the other.
func (r *relay[TX]) claimHolds(asked []target) {
	asked = slices.DeleteFunc(asked, func(at target) bool { return r.stopped[at] == nil })
	slices.SortFunc(asked, func(a, b target) int { return cmp.Compare(r.stopped[b].highest, r.stopped[a].highest) })
	for i, at := range asked {
		highest := r.stopped[at].highest
		about := []any{"receiver", at.receiver, "scope", at.scope, "highest", int64(highest)}
		if !r.climbs.may(climb{r.p, at}) {
			r.logger.Error("a receiver has seen a higher epoch again, after claims were made above what it had seen: another partition or group "+
				"sends for this scope; nothing is sent for it until the receiver takes this epoch, give the other one scopes of its own", about...)
			continue
		}
		if err := r.claim.Above(highest); err != nil {
			r.logger.Error("a receiver has seen an epoch that no claim may follow; nothing is sent for this scope until an operator has lowered it "+
				"there (see httpfence.SQLStore.ForgetAbove)", append(about, "err", err)...)
			continue
		}
		for _, at := range asked[i:] {
			r.climbs.note(climb{r.p, at})
		}
		return
	}
}

// climbs counts the claims that were made above what targets had seen.
type climbs struct {
	mu sync.Mutex
	of map[climb]int
}

type climb struct {
	partition epoch.Partition
	at        target
}

const (
	// maxClimbs is how often a process claims a partition above what one target has
	// seen. Once is enough where a sink has lost claims.
	maxClimbs = 3

	// maxClimbing bounds how many targets that is counted of.
	maxClimbing = 4096
)

func (c *climbs) may(k climb) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	n, known := c.of[k]
	return n < maxClimbs && (known || len(c.of) < maxClimbing)
}

func (c *climbs) note(k climb) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.of == nil {
		c.of = map[climb]int{}
	}
	if _, known := c.of[k]; known || len(c.of) < maxClimbing {
		c.of[k]++
	}
}
