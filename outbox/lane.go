package outbox

import (
	"container/heap"
	"slices"
	"time"

	"github.com/epochfence/epochfence/internal/waits"
)

// This file has the queues of the relay: a lane for each Key, and lanes by the time at which their
// wait ends. It decides no wait: relay.go and settlement.go do, with the backoffs of Options.

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
