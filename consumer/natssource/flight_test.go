package natssource

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/epochfence/epochfence/internal/suites/bubble"
	"github.com/epochfence/epochfence/internal/waits"
)

// path is a network that carries bytes one after the other, in virtual time.
type path struct {
	rate  int           // bytes a second
	there time.Duration // and back

	mu   sync.Mutex
	free time.Time     // when it has carried what it was given
	most time.Duration // that anything has waited
}

// carry returns when an answer of so many bytes has arrived.
func (p *path) carry(bytes int) {
	waits.Sleep(context.Background(), p.there/2)
	p.mu.Lock()
	now := time.Now()
	if p.free.Before(now) {
		p.free = now
	}
	p.free = p.free.Add(time.Duration(bytes) * time.Second / time.Duration(p.rate))
	wait := p.free.Sub(now)
	p.most = max(p.most, wait)
	p.mu.Unlock()
	waits.Sleep(context.Background(), wait+p.there/2)
}

// TestWhatIsInFlightArrivesInTimeAndFillsTheLink plays readers that always have messages waiting, on links
// of all kinds.
func TestWhatIsInFlightArrivesInTimeAndFillsTheLink(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name          string
		ttl           time.Duration
		rate          int
		there, verify time.Duration
		readers, size int
		least         float64 // of what the link could carry
	}{
		{"slow, one partition", 15 * time.Second, 500_000, 20 * time.Millisecond, 0, 1, 100_000, 0.8},
		{"slow, many partitions", 15 * time.Second, 500_000, 20 * time.Millisecond, 0, 64, 100_000, 0.9},
		{"slow, a short lease", 5 * time.Second, 500_000, 20 * time.Millisecond, 0, 4, 100_000, 0.8},
		{"slow, small messages", 15 * time.Second, 500_000, 20 * time.Millisecond, 0, 12, 500, 0.8},
		{"slow and far", 15 * time.Second, 500_000, 300 * time.Millisecond, 0, 12, 100_000, 0.75},
		{"far", 15 * time.Second, 20_000_000, 100 * time.Millisecond, 0, 4, 10_000, 0.85},
		{"readers that do something else meanwhile", 5 * time.Second, 20_000_000, 2 * time.Millisecond, 200 * time.Millisecond, 4, 100_000, 0.6},
		{"fast", 15 * time.Second, 500_000_000, time.Millisecond, 0, 8, 1000, 0.9},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			bubble.Test(t, func(t *testing.T) {
				p := &path{rate: c.rate, there: c.there}
				f := newFlight(c.ttl, func() uint64 { return 0 })
				f.answered(c.there)
				const learning, lasts = 20 * time.Second, 80 * time.Second
				ctx, stop := context.WithTimeout(t.Context(), lasts)
				defer stop()
				var (
					playing sync.WaitGroup
					mu      sync.Mutex
					carried int64
					began   = time.Now()
				)
				for range c.readers {
					leave := f.join()
					playing.Go(func() {
						defer leave()
						for ctx.Err() == nil {
							permit := f.ask(2*c.size, 32<<20/c.readers)
							<-permit.granted
							bytes := min(permit.bytes, 4000*c.size) / c.size * c.size
							p.carry(bytes)
							waits.Sleep(context.Background(), c.verify)
							f.came(permit, bytes, c.size)
							f.end(permit, true)
							if past := time.Since(began); past > learning && past < lasts {
								mu.Lock()
								carried += int64(bytes)
								mu.Unlock()
							}
						}
					})
				}
				waits.Sleep(context.Background(), learning)
				p.mu.Lock()
				p.most = 0
				p.mu.Unlock()
				playing.Wait()
				could := float64(c.rate) * (lasts - learning).Seconds()
				t.Logf("%.2f of the rate; the longest wait %v of %v", float64(carried)/could, p.most, f.queue)
				if float64(carried) < c.least*could {
					t.Errorf("it has carried %d bytes of %.0f", carried, could)
				}
				if most := f.queue*3/2 + c.there; p.most > most {
					t.Errorf("an answer would have waited %v, want %v at most", p.most, most)
				}
			})
		})
	}
}

// TestPermitsForMessagesOfUnknownSizeDoNotRaiseTheBound plays 64 readers whose next message was too large
// for what they have requested: each asks for the largest that the server allows, which is ten times what comes.
func TestPermitsForMessagesOfUnknownSizeDoNotRaiseTheBound(t *testing.T) {
	t.Parallel()
	bubble.Test(t, func(t *testing.T) {
		const size, most, readers = 100_000, 1 << 20, 64
		p := &path{rate: 500_000, there: time.Millisecond}
		f := newFlight(15*time.Second, func() uint64 { return 0 })
		f.answered(p.there)
		var playing sync.WaitGroup
		for range readers {
			leave := f.join()
			playing.Go(func() {
				defer leave()
				for range 5 {
					permit := f.ask(most, most)
					<-permit.granted
					p.carry(size)
					f.came(permit, size, size)
					f.end(permit, true)
				}
			})
		}
		playing.Wait()
		if p.most > f.queue {
			t.Errorf("an answer would have waited %v, want %v at most", p.most, f.queue)
		}
	})
}

func TestMessagesThatCameTellHowRarelyALeaderMayBeAskedForOne(t *testing.T) {
	t.Parallel()
	bubble.Test(t, func(t *testing.T) {
		f := newFlight(15*time.Second, func() uint64 { return 0 })
		for range 64 {
			f.join()
		}
		permit := f.ask(1, 100_000)
		<-permit.granted
		waits.Sleep(context.Background(), 200*time.Millisecond)
		f.came(permit, 100_000, 100_000)
		f.end(permit, true) // 0.5 MB/s
		if each := f.usual(); each < 100_000 || each > 150_000 {
			t.Errorf("a leader's answer may have %d bytes after a message of 100,000", each)
		}
		if got := f.pace(); got < 64*4*time.Second || got > 64*6*time.Second {
			t.Errorf("64 readers may each ask for two every %v; a tenth of the link carries one in 2.7 s", got)
		}
	})
}

func TestALostConnectionBeginsAnewWithLessInFlight(t *testing.T) {
	t.Parallel()
	bubble.Test(t, func(t *testing.T) {
		var made uint64
		f := newFlight(15*time.Second, func() uint64 { return made })
		in := func(want int) (first, then int) { // how much may be in flight, at first and when nothing more is learnt
			for {
				permit := f.ask(1, want)
				<-permit.granted
				bytes := permit.bytes
				waits.Sleep(context.Background(), time.Millisecond)
				f.came(permit, bytes, 1)
				f.end(permit, true)
				switch {
				case first == 0:
					first = bytes
				case bytes > 2*then: // what has waited on the way comes faster than the link carries
					t.Errorf("%d bytes may be in flight after %d", bytes, then)
				case bytes == then:
					return first, then
				}
				then = bytes
			}
		}
		const all = 64 << 20
		if first, then := in(all); first != beginFlight || then != all {
			t.Fatalf("%d bytes are in flight at first, then %d", first, then)
		}
		lost := f.ask(1, 32<<20)
		<-lost.granted
		made++
		f.end(lost, false)
		if first, then := in(all); first != beginFlight || then != 8<<20 {
			t.Errorf("after a connection was lost with 32 MiB in flight there are %d bytes, then %d", first, then)
		}
		made++ // with nothing in flight
		if first, then := in(all); first != beginFlight || then != 8<<20 {
			t.Errorf("after a connection was lost with nothing in flight there are %d bytes, then %d", first, then)
		}
		waits.Sleep(context.Background(), ceilingLasts)
		if first, then := in(all); first != beginFlight || then != 16<<20 {
			t.Errorf("after a while there are %d bytes, then %d", first, then)
		}
	})
}

func TestPermitsComeInTheOrderInWhichTheyWereAskedFor(t *testing.T) {
	t.Parallel()
	f := newFlight(15*time.Second, func() uint64 { return 0 })
	large := f.ask(10*beginFlight, 10*beginFlight) // alone, as it is larger than all that may be in flight
	if !isClosed(large.granted) {
		t.Fatal("a large message waits for nothing")
	}
	small, gone, last := f.ask(1, 1), f.ask(1, 1), f.ask(1, beginFlight)
	f.end(gone, false)
	if isClosed(small.granted) || isClosed(last.granted) {
		t.Error("something else is in flight beside a message that is too large for that")
	}
	f.end(large, false)
	if !isClosed(small.granted) || isClosed(gone.granted) || !isClosed(last.granted) || last.bytes > beginFlight-1 {
		t.Errorf("granted: %v, %v, %v with %d bytes", isClosed(small.granted), isClosed(gone.granted), isClosed(last.granted), last.bytes)
	}
	another := f.ask(10*beginFlight, 10*beginFlight)
	f.came(last, last.bytes, 1)
	f.end(last, false)
	if isClosed(another.granted) {
		t.Error("a large message does not wait for what is in flight")
	}
	f.end(small, false)
	if !isClosed(another.granted) {
		t.Error("a large message never gets a permit")
	}
}
