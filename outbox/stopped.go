package outbox

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"github.com/epochfence/epochfence/epoch"
)

// This file decides what follows when a receiver has seen a higher epoch than the claim's: the entries of
// its scope wait, the sink is asked whether the claim holds, and if so the next claim is made above. The
// receiver compares the epochs: package httpfence.

// target is a scope at a receiver. The receiver keeps one highest epoch for each.
type target struct{ receiver, scope string }

func targetOf(e Entry) target { return target{receiverOf(e.URL), e.Scope} }

// stop is the state of a target that has seen a higher epoch than the claim's. The relay sends it
// only one entry each RetryMax, to see whether it still refuses the epoch.
type stop struct {
	highest epoch.Epoch
	until   time.Time
}

// stop stops the target of l, which has refused the epoch as stale. The relay asks the sink once
// for each highest epoch whether the claim still holds.
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

// stoppedFor returns how long a lane has to wait because its target is stopped. When the wait of a
// target is over, it lets one lane send and makes the others wait again.
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

// admitted ends the stop of a target that has accepted our epoch.
func (r *relay[TX]) admitted(l *lane) {
	if len(r.stopped) > 0 {
		delete(r.stopped, targetOf(l.row.Entry))
	}
}

// claimHolds is called when the sink has confirmed the claim after the targets in asked have
// reported a higher epoch. So the sink has lost later claims, or the epoch belongs to another
// partition. In the first case, a claim above that epoch fixes it. In the second case, claims are
// limited by climbs: otherwise two partitions would claim above each other forever.
func (r *relay[TX]) claimHolds(asked []target) {
	asked = slices.DeleteFunc(asked, func(at target) bool { return r.stopped[at] == nil })
	slices.SortFunc(asked, func(a, b target) int { return cmp.Compare(r.stopped[b].highest, r.stopped[a].highest) })
	for i, at := range asked {
		highest := r.stopped[at].highest
		about := []any{"receiver", at.receiver, "scope", at.scope, "highest", int64(highest)}
		if !r.climbs.may(climb{r.p, at}) {
			r.logger.Error("a receiver has seen a higher epoch again, after claims were made above what it had seen: another partition or group "+
				"sends for the same scope: give each its own scopes; until the receiver accepts this partition's epoch, this partition sends nothing for the scope", about...)
			continue
		}
		if err := r.claim.Above(highest); err != nil {
			r.logger.Error("a receiver has seen an epoch that is too high to claim above it; nothing is sent for this scope until an operator has lowered it "+
				"there (see httpfence.SQLStore.ForgetAbove)", append(about, "err", err)...)
			continue
		}
		for _, at := range asked[i:] {
			r.climbs.note(climb{r.p, at})
		}
		return
	}
}

// climbs counts the claims that were made above the epochs of targets.
type climbs struct {
	mu sync.Mutex
	of map[climb]int
}

type climb struct {
	partition epoch.Partition
	at        target
}

const (
	// maxClimbs limits the claims of a partition above the epoch of one target, for each process.
	// One claim is enough if a sink has lost claims.
	maxClimbs = 3

	// maxClimbing limits the targets that are counted.
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
