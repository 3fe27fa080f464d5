package sourcetest

import (
	"reflect"
	"regexp"
	"runtime"
	"strings"
	"time"

	"github.com/epochfence/epochfence/consumer"
)

// brokerHeap is what a broker in this process may take while it is read from: a nats-server has two
// blocks of 8 MiB in memory, and what it sends.
const brokerHeap = 24 << 20

var resources = []history{{
	claim: "nothing of a source runs on after its Run has returned",
	alone: true,
	story: func(w *world) {
		topic := w.newTopic(3)
		w.produce(topic, 0, numbered(0, 0, 10)...)
		before := goroutines()
		var source consumer.Source
		for range 3 {
			a, b := w.start("a", topic), w.start("b", topic)
			w.await("both have a partition", func() bool { return len(a.holding()) > 0 && len(b.holding()) > 0 })
			var g *grant
			w.note(func() { g = a.holding()[0] })
			g.confirm(g.earliest())
			end := g.latest()
			reading := make(chan struct{})
			go func() { // until the tenure ends under it
				defer close(reading)
				for _, err := range g.Read(g.ctx, end) {
					_ = err
				}
			}()
			a.leave()
			b.leave()
			w.awaitClosed("Read ends", reading)
			source = a.source
		}
		var left []string
		w.poll("the goroutines of the source's package end", func() bool {
			left = left[:0]
			for id, stack := range goroutines() {
				if _, old := before[id]; !old && within(stack, source) {
					left = append(left, stack)
				}
			}
			return len(left) == 0
		})
	},
}, {
	claim: "a reader that stops taking messages does not make the source hold more than it says",
	rules: "buffers", needs: []need{needs[Bounded]()},
	alone: true,
	story: func(w *world) {
		limit := w.Harness.(Bounded).Buffers()
		topic := w.newTopic(4)
		const size = 256 << 10
		for n := range int32(4) {
			ms := make([]consumer.Message, max(2*limit/size, 8)) // twice the limit in each partition
			for i := range ms {
				ms[i].Value = make([]byte, size)
			}
			w.Produce(w.t, topic, n, ms...)
		}
		before := heap() // with all that a broker in this process stores in memory
		p := w.start("a", topic)
		for n := range int32(4) {
			g := p.granted(topic, n)
			ctx, done := g.bound()
			defer done()
			for b, err := range g.Read(ctx, g.earliest()) {
				w.check(err, "Read")
				if n < 3 {
					break
				}
				// The last reader keeps its batch and takes no more.
				if most := heapFor(2 * time.Second); most > before+limit+limit/2+brokerHeap {
					w.fail("with %d messages in hand the heap grew by %d MiB; the source says that it holds %d MiB at most",
						len(b.Messages), (most-before)>>20, limit>>20)
				}
				break
			}
		}
	},
}}

func heapFor(d time.Duration) int {
	ticker, end := time.NewTicker(d/10), time.NewTimer(d)
	defer ticker.Stop()
	defer end.Stop()
	most := 0
	for {
		select {
		case <-ticker.C:
			most = max(most, heap())
		case <-end.C:
			return most
		}
	}
}

func heap() int {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}

var goroutineHead = regexp.MustCompile(`^goroutine (\d+) `)

func goroutines() map[string]string {
	buf := make([]byte, 1<<20)
	for {
		n := runtime.Stack(buf, true)
		if n < len(buf) {
			buf = buf[:n]
			break
		}
		buf = make([]byte, 2*len(buf))
	}
	stacks := map[string]string{}
	for stack := range strings.SplitSeq(string(buf), "\n\n") {
		if m := goroutineHead.FindStringSubmatch(stack); m != nil {
			stacks[m[1]] = stack
		}
	}
	return stacks
}

// within reports whether a goroutine is in, or was created by, the package of the source's type.
func within(stack string, s consumer.Source) bool {
	t := reflect.TypeOf(s)
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	return t.PkgPath() != "" && strings.Contains(stack, t.PkgPath()+".")
}
