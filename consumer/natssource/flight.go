package natssource

import (
	"encoding/base64"
	"slices"
	"sync"
	"time"
)

const (
	// beginFlight is how much may be in flight before the rate was measured, and after it was not for
	// a while. On a fast link that costs one request.
	beginFlight = 128 << 10

	// mostFlight is what no link needs.
	mostFlight = 1 << 30

	// leastQuiet is what a partition may request at least, however slow the link is.
	leastQuiet = 1 << 10

	// mostQuiet, or quietEach for each, is what all partitions together may request for what is not
	// known to wait, if the link carries that: it may have become slow since it was measured.
	mostQuiet = 4 << 20
	quietEach = 256 << 10

	// mostQueue is the longest that an answer may have to wait for what was requested before it.
	mostQueue = time.Second

	// rateLasts is how long a measured rate is relied upon.
	rateLasts = 10 * time.Second

	// leastCeiling is the least that a lost connection leaves, and ceilingLasts how long it
	// takes until twice as much is tried.
	leastCeiling = 1 << 20
	ceilingLasts = 10 * time.Minute
)

// flight bounds the bytes of messages that a source has requested and that have not arrived.
// They come by the connection by which the answers come that the lease depends on, and those wait
// until everything before them has arrived: in the server, in sockets, in the network. So no
// more is requested than the link carries in a fraction of LeaseTTL, at the rate that was
// measured.
//
// Readers take turns. What is requested where nothing is known to wait needs no turn: it is small.
type flight struct {
	queue time.Duration // how long what is in flight may take to arrive
	over  func() uint64 // how often the connection has been made again

	mu       sync.Mutex
	made     uint64        // what over said last
	rate     float64       // bytes a second; 0: not known
	fits     int           // bytes that may be in flight, as it was measured
	measured time.Time     // when that was
	nearest  time.Duration // the shortest time that an answer has taken; 0: not known
	ceiling  int           // what may be in flight at most, whatever the rate; 0: any
	lowered  time.Time     // when that was set
	arrived  int64         // bytes, of all requests
	used     int           // bytes of the turns that are taken
	taken    int           // turns
	waiting  []*turn
	readers  int
	body     int // bytes of the largest message of late
}

// turn is a reader's leave to request bytes.
type turn struct {
	need, want int
	granted    chan struct{} // closed when it is the reader's

	made  uint64    // what it was granted for: one life of the connection
	bytes int       // that may be requested, and then those that have not arrived; the rest is the flight's
	since time.Time // when it was granted
	had   int64     // what had arrived then
	last  time.Time // when bytes of it have arrived last
	has   int64     // what had arrived then
	short bool      // it got less than it wanted
}

func newFlight(ttl time.Duration, over func() uint64) *flight {
	f := &flight{queue: mostQueue, over: over, made: over()}
	if ttl > 0 {
		f.queue = min(ttl/12, mostQueue) // half of what a renewal waits for its answer
	}
	return f
}

// join counts a reader, until leave is called.
func (f *flight) join() (leave func()) {
	f.add(1)
	return func() { f.add(-1) }
}

func (f *flight) add(readers int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.readers += readers
}

// answered notes how long a small request took.
func (f *flight) answered(took time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.nearest == 0 || took < f.nearest {
		f.nearest = took
	}
}

// quiet is how many bytes a reader may request without a turn.
func (f *flight) quiet() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	all, n := beginFlight, max(f.readers, 1)
	if f.rate > 0 {
		all = int(min(max(mostQuiet, int64(n)*quietEach), int64(f.fits/2)))
	}
	return max(min(all, f.highest())/n, leastQuiet)
}

// ask queues for a turn, for at least need bytes and at most want. end gives it back, whether it
// was granted or not.
func (f *flight) ask(need, want int) *turn {
	t := &turn{need: need, want: max(need, want), granted: make(chan struct{})}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lookForLoss()
	f.waiting = append(f.waiting, t)
	f.admit()
	return t
}

// admit grants turns in the order in which they were asked for. One for more than the bound is
// granted alone: what it is for must arrive some time.
func (f *flight) admit() {
	for len(f.waiting) > 0 {
		t, bound := f.waiting[0], f.bound()
		bytes := max(t.need, min(t.want, bound/(f.taken+len(f.waiting))))
		if f.used > 0 && f.used+bytes > bound {
			if bytes = bound - f.used; bytes < t.need {
				return
			}
		}
		f.waiting = f.waiting[1:]
		f.used, f.taken = f.used+bytes, f.taken+1
		t.made, t.bytes, t.since, t.had, t.short = f.made, bytes, time.Now(), f.arrived, bytes < t.want
		close(t.granted)
	}
}

// came notes that bytes have arrived, of the turn t if it is not nil, in messages of which the largest has
// so many.
func (f *flight) came(t *turn, bytes, largest int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lookForLoss()
	f.body = max(f.body, largest)
	f.arrived += int64(bytes)
	if t != nil && t.made == f.made {
		bytes = min(bytes, t.bytes)
		t.bytes, f.used = t.bytes-bytes, f.used-bytes
		t.last, t.has = time.Now(), f.arrived
	}
	f.admit()
}

// end gives a turn back. Full says that everything that was requested has come, and that it was
// there when it was requested.
func (f *flight) end(t *turn, full bool) {
	if t == nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lookForLoss()
	if i := slices.Index(f.waiting, t); i >= 0 {
		f.waiting = slices.Delete(f.waiting, i, i+1)
		f.admit()
		return
	}
	if t.made == f.made {
		f.used, f.taken, t.bytes = f.used-t.bytes, f.taken-1, 0
		if full && t.has > t.had {
			f.measure(t)
		}
	}
	f.admit()
}

// measure takes the rate from a turn. What has waited on the way comes faster than the link
// carries, and so the rate counts for no more than twice what it was measured by. Where time is
// lost elsewhere than on the link, as on the way there and back, what is in flight grows although
// the rate does not tell: while as much as the bound arrives well in time, and somebody wants more.
// A turn for a message of unknown size has most of its bytes for nothing, which proves nothing.
func (f *flight) measure(t *turn) {
	took, before, came := max(t.last.Sub(t.since), time.Microsecond), f.bound(), t.has-t.had
	f.rate, f.measured = float64(came)/took.Seconds(), time.Now()
	proven := max(int(min(2*came, mostFlight)), before, beginFlight)
	f.fits = max(min(f.carries(f.rate), proven), leastQuiet)
	if (t.short || len(f.waiting) > 0) && 2*came >= int64(before) && took < (f.queue+f.nearest)*3/4 {
		f.fits = max(f.fits, min(before+before/4, mostFlight))
	}
}

// bound is how many bytes may be in flight.
func (f *flight) bound() int {
	bound := beginFlight
	if f.rate > 0 {
		if bound = min(bound, f.fits); time.Since(f.measured) < rateLasts {
			bound = f.fits
		}
	}
	return min(bound, f.highest())
}

// carries is what a link carries at a rate in the time that an answer may wait. What was measured
// includes the way there and back, on which nothing waits.
func (f *flight) carries(rate float64) int {
	return int(min(rate*(f.queue+f.nearest).Seconds(), mostFlight))
}

// highest is what may be in flight whatever the rate.
func (f *flight) highest() int {
	if f.ceiling == 0 {
		return mostFlight
	}
	return int(min(int64(f.ceiling)<<min(time.Since(f.lowered)/ceilingLasts, 10), mostFlight))
}

// lookForLoss begins anew where the connection was made again: nothing is in flight any more. A server
// drops a connection that has more waiting for it than max_pending, and does not say why.
func (f *flight) lookForLoss() {
	now := f.over()
	if now == f.made {
		return
	}
	if f.used > 0 {
		f.ceiling, f.lowered = max(f.used/4, leastCeiling), time.Now()
	}
	f.made, f.rate, f.nearest, f.used, f.taken = now, 0, 0, 0, 0
}

// delay is how long what is in flight may take to arrive.
func (f *flight) delay() time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lookForLoss()
	rate := f.rate
	if rate == 0 {
		rate = beginFlight / f.queue.Seconds()
	}
	return time.Duration(min(2*float64(f.used)/rate, time.Minute.Seconds()) * float64(time.Second))
}

// pace is how far apart readers must each ask a leader for a message, for all of them together to take
// a tenth of what the link carries: each may ask for two.
func (f *flight) pace() time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.rate == 0 {
		return 0
	}
	return time.Duration(min(20*float64(f.readers)*float64(answerWith(f.body))/f.rate, time.Hour.Seconds()) * float64(time.Second))
}

// brought notes the size of a message that a leader has answered with.
func (f *flight) brought(bytes int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.body = max(bytes, f.body-f.body/8)
	f.arrived += int64(answerWith(bytes))
}

// usual is how large a leader's answer may be; 0: no message has come.
func (f *flight) usual() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return answerWith(f.body)
}

// answerWith is the size of a leader's answer with a message of so many bytes; 0 for none.
func answerWith(bytes int) int {
	if bytes == 0 {
		return 0
	}
	return base64.StdEncoding.EncodedLen(bytes) + overhead
}

// carried is the rate that was measured last, in bytes a second; 0 if it is not known.
func (f *flight) carried() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return int(f.rate)
}
