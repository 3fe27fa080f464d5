package outbox

import (
	"container/heap"
	"slices"
	"time"

	"github.com/epochfence/epochfence/internal/backoff"
)

// laneKey is what entries wait for each other by: their Key, or the ID of an
// entry that has none.
type laneKey struct {
	key string
	id  int64
}

// lane is a queue of entries of one Key, of which only the first is known.
type lane struct {
	key     laneKey
	id      int64
	row     *Row  // nil while it waits to be read again
	more    bool  // there may be entries behind it
	late    int64 // the lowest ID of one that was committed later than this one, although it is lower; 0: none
	attempt int
	outcome outcome
	took    time.Duration // to get the outcome
	wait    *backoff.Backoff
	until   time.Time
	trouble *troubleKey // in which it fails, if it does
}

// next is how long the lane waits after one more failure.
func (l *lane) next(b interface{ newBackoff() *backoff.Backoff }) time.Duration {
	if l.wait == nil {
		l.wait = b.newBackoff()
	}
	return l.wait.Next()
}

func (b *Box[TX]) newBackoff() *backoff.Backoff { return backoff.New(b.o.RetryMin, b.o.RetryMax) }

// waiting are lanes that wait for their time, the next one first.
type waiting struct{ lanes lanesByTime }

func (w *waiting) add(l *lane, until time.Time) {
	l.until = until
	heap.Push(&w.lanes, l)
}

// back puts lanes back whose time had come.
func (w *waiting) back(ls []*lane) {
	for _, l := range ls {
		heap.Push(&w.lanes, l)
	}
}

// now has lanes wait no longer whose entries these are.
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

// due takes out the lanes whose time has come, at most limit.
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
