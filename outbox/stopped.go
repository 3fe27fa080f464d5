package outbox

import (
	"cmp"
	"container/heap"
	"slices"
	"sync"
	"time"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/waits"
)

// This file decides what follows when a receiver has seen a higher epoch than the claim's: the entries of
// its scope wait, the sink is asked whether the claim holds, and if so the next claim is made above. The
// receiver compares the epochs: package httpfence. Below are the queues of the relay in which entries wait. relay.go
// and settlement.go decide how long, with the backoffs of Options.

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

// laneKey identifies a lane: the Key of its entries, or the ID of an entry without a Key.
type laneKey struct {
	key string
	id  int64
}

// lane is the queue of the entries of one Key. Only its first entry is known.
type lane struct {
	key     laneKey
	id      int64
	row     *Row  // nil while it waits to be read again
	more    bool  // there may be entries behind it
	late    int64 // the lowest lower ID of an entry that was committed later; 0: none
	attempt int
	outcome outcome
	took    time.Duration // to get the outcome
	wait    *waits.Backoff
	until   time.Time
}

// next returns how long the lane waits after one more failure.
func (l *lane) next(b interface{ newBackoff() *waits.Backoff }) time.Duration {
	if l.wait == nil {
		l.wait = b.newBackoff()
	}
	return l.wait.Next()
}

func (b *Box[TX]) newBackoff() *waits.Backoff { return waits.New(b.o.RetryMin, b.o.RetryMax) }

// waiting is a queue of lanes by the time when their wait ends.
type waiting struct{ lanes lanesByTime }

func (w *waiting) add(l *lane, until time.Time) {
	l.until = until
	heap.Push(&w.lanes, l)
}

// back puts lanes back that due has taken out.
func (w *waiting) back(ls []*lane) {
	for _, l := range ls {
		heap.Push(&w.lanes, l)
	}
}

// now ends the wait of the lanes with these entries.
func (w *waiting) now(ids []int64, now time.Time) {
	if len(ids) == 0 {
		return
	}
	for _, l := range w.lanes {
		if slices.Contains(ids, l.id) && l.until.After(now) {
			l.until = now
		}
	}
	heap.Init(&w.lanes)
}

func (w *waiting) next() (time.Time, bool) {
	if len(w.lanes) == 0 {
		return time.Time{}, false
	}
	return w.lanes[0].until, true
}

func (w *waiting) len() int { return len(w.lanes) }

// due takes out at most limit lanes whose wait is over.
func (w *waiting) due(now time.Time, limit int) (ls []*lane) {
	for len(w.lanes) > 0 && !w.lanes[0].until.After(now) && len(ls) < limit {
		ls = append(ls, heap.Pop(&w.lanes).(*lane))
	}
	return ls
}

type lanesByTime []*lane

func (h lanesByTime) Len() int           { return len(h) }
func (h lanesByTime) Less(i, j int) bool { return h[i].until.Before(h[j].until) }
func (h lanesByTime) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *lanesByTime) Push(x any)        { *h = append(*h, x.(*lane)) }
func (h *lanesByTime) Pop() any {
	last := len(*h) - 1
	l := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	return l
}
