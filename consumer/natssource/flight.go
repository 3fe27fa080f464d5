package natssource

import (
	"encoding/base64"
	"slices"
	"sync"
	"time"
)

// This file decides how many bytes may be on their way to this process. request.go decides which
// reader asks for them.

const (
	// beginFlight limits the bytes in flight before the rate was measured, and after it was not
	// measured for a while. On a fast link this costs one request.
	beginFlight = 128 << 10

	// mostFlight is more than any link needs, in bytes.
	mostFlight = 1 << 30

	// leastQuiet is what a partition may always request, however slow the link is.
	leastQuiet = 1 << 10

	// mostQuiet, or quietEach for each partition if that is more, limits the bytes that all
	// partitions together request without knowing that messages wait. The link may have become slow
	// since its rate was measured.
	mostQuiet = 4 << 20
	quietEach = 256 << 10

	// mostQueue limits the time that an answer waits for bytes that were requested before it.
	mostQueue = time.Second

	// rateLasts is how long a measured rate is used.
	rateLasts = 10 * time.Second

	// leastCeiling is the lowest ceiling, in bytes, that a lost connection sets. The ceiling
	// doubles every ceilingLasts.
	leastCeiling = 1 << 20
	ceilingLasts = 10 * time.Minute
)

// flight limits the bytes of messages that a source has requested and that have not arrived. The
// answers that the lease depends on use the same connection and arrive behind those bytes, which
// wait in the server, in sockets and in the network. So flight allows only as many bytes as the
// link carries in a fraction of LeaseTTL, at the measured rate.
//
// Readers need permits to request many bytes. A reader that does not know of waiting messages makes
// a small request, which needs none.
type flight struct {
	queue time.Duration // how long bytes in flight may take to arrive
	over  func() uint64 // reconnects of the connection

	mu       sync.Mutex
	made     uint64  // the last value of over
	rate     float64 // bytes per second; 0: not known
	fits     int     // bytes that may be in flight, by the last measurement
	measured time.Time
	nearest  time.Duration // the shortest answer time; 0: not known
	ceiling  int           // limit of the bytes in flight, whatever the rate; 0: none
	lowered  time.Time
	arrived  int64 // bytes, of all requests
	used     int   // bytes of the granted permits
	taken    int   // granted permits
	waiting  []*permit
	readers  int
	body     int // bytes of the largest recent message
}

// permit is a reader's permission to request bytes.
type permit struct {
	need, want int
	granted    chan struct{}

	made  uint64 // flight.made when granted: a permit ends with its connection
	bytes int    // granted bytes that have not arrived
	since time.Time
	had   int64     // flight.arrived at since
	last  time.Time // when bytes of the permit last arrived
	has   int64     // flight.arrived at last
	short bool      // it got less than it wanted
}

func newFlight(ttl time.Duration, over func() uint64) *flight {
	f := &flight{queue: mostQueue, over: over, made: over()}
	if ttl > 0 {
		f.queue = min(ttl/12, mostQueue) // half of the time that a renewal waits for its answer
	}
	return f
}

func (f *flight) join() (leave func()) {
	f.add(1)
	return func() { f.add(-1) }
}

func (f *flight) add(readers int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.readers += readers
}

func (f *flight) answered(took time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.nearest == 0 || took < f.nearest {
		f.nearest = took
	}
}

// quiet returns how many bytes a reader may request without a permit.
func (f *flight) quiet() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	all, n := beginFlight, max(f.readers, 1)
	if f.rate > 0 {
		all = int(min(max(mostQuiet, int64(n)*quietEach), int64(f.fits/2)))
	}
	return max(min(all, f.highest())/n, leastQuiet)
}

// ask queues for a permit of need to want bytes. The caller gives it back with end, granted or not.
func (f *flight) ask(need, want int) *permit {
	t := &permit{need: need, want: max(need, want), granted: make(chan struct{})}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lookForLoss()
	f.waiting = append(f.waiting, t)
	f.admit()
	return t
}

// admit grants permits in the order of the requests. A permit that needs more than the bound is granted
// alone, because its message must arrive at some time.
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

// came records that bytes have arrived, of the permit t if it is not nil.
func (f *flight) came(t *permit, bytes, largest int) {
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

// end gives a permit back. full says that everything requested has arrived and was in the stream when
// it was requested.
func (f *flight) end(t *permit, full bool) {
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

// measure takes the rate from a permit. Bytes that were queued on the way arrive faster than the link
// carries, so fits grows to at most twice the bytes that arrived. The rate is too low if time is
// lost elsewhere than on the link, for example on the round trip. So fits also grows if about as
// many bytes as the bound arrived well in time and a reader wants more. A permit for a message of
// unknown size leaves most of its bytes unused, which proves nothing.
func (f *flight) measure(t *permit) {
	took, before, came := max(t.last.Sub(t.since), time.Microsecond), f.bound(), t.has-t.had
	f.rate, f.measured = float64(came)/took.Seconds(), time.Now()
	proven := max(int(min(2*came, mostFlight)), before, beginFlight)
	f.fits = max(min(f.carries(f.rate), proven), leastQuiet)
	if (t.short || len(f.waiting) > 0) && 2*came >= int64(before) && took < (f.queue+f.nearest)*3/4 {
		f.fits = max(f.fits, min(before+before/4, mostFlight))
	}
}

func (f *flight) bound() int {
	bound := beginFlight
	if f.rate > 0 {
		if bound = min(bound, f.fits); time.Since(f.measured) < rateLasts {
			bound = f.fits
		}
	}
	return min(bound, f.highest())
}

// carries returns the bytes that a link carries at a rate while an answer may wait. The measured
// time includes the round trip, on which nothing waits.
func (f *flight) carries(rate float64) int {
	return int(min(rate*(f.queue+f.nearest).Seconds(), mostFlight))
}

func (f *flight) highest() int {
	if f.ceiling == 0 {
		return mostFlight
	}
	return int(min(int64(f.ceiling)<<min(time.Since(f.lowered)/ceilingLasts, 10), mostFlight))
}

// lookForLoss starts over after a reconnect: nothing is in flight any more. A server drops a
// connection for which more than max_pending bytes wait, and does not say why.
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

// delay returns how long bytes in flight may take to arrive.
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

// pace returns the interval at which each reader may ask a leader for messages, so that all readers
// together use a tenth of the link. A reader may ask for two messages each time.
func (f *flight) pace() time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.rate == 0 {
		return 0
	}
	return time.Duration(min(20*float64(f.readers)*float64(answerWith(f.body))/f.rate, time.Hour.Seconds()) * float64(time.Second))
}

func (f *flight) brought(bytes int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.body = max(bytes, f.body-f.body/8)
	f.arrived += int64(answerWith(bytes))
}

// usual returns how large a leader's answer may be; 0 if no message has come.
func (f *flight) usual() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return answerWith(f.body)
}

func answerWith(bytes int) int {
	if bytes == 0 {
		return 0
	}
	return base64.StdEncoding.EncodedLen(bytes) + overhead
}

func (f *flight) carried() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return int(f.rate)
}
