package sourcetest

import (
	"context"
	"fmt"
	"iter"
	"log/slog"
	"math/rand/v2"
	"reflect"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/sinks/memsink"
)

type (
	tx      = *memsink.Tx
	options = consumer.Options
)

// system is one process that runs consumer.Run, with its own connection to the database in memory.
type system struct {
	*process
	sink   *memsink.Sink
	events []consumer.Event // the world's lock guards them
}

// run starts a process that applies messages to db. hooks are the faults of its connection.
func (w *world) run(name string, db *memsink.Sink, hooks memsink.Hooks, topics ...string) *system {
	return w.runAs(&process{name: name, group: group}, db, hooks, options{}, topics...)
}

func (w *world) runAs(p *process, db *memsink.Sink, hooks memsink.Hooks, o options, topics ...string) *system {
	s := &system{process: p, sink: db.Open()}
	s.sink.Script(hooks)
	w.add(p, topics)
	// These histories must not wait for retries.
	o.RetryMin, o.RetryMax = time.Millisecond, 20*time.Millisecond
	o.HaltMin, o.HaltMax = 10*time.Millisecond, 100*time.Millisecond
	o.HangTimeout = time.Hour // histories freeze a process by what holds up its handler or its sink
	o.Logger = slog.New(slog.DiscardHandler)
	o.Observe = s.Observe
	p.run(func(ctx context.Context) error {
		return consumer.Run(ctx, watched{s}, s.sink, consumer.Each(apply), o)
	})
	return s
}

// filled returns a new topic with one partition that has ten messages, and a database.
func (w *world) filled() (topic string, db *memsink.Sink, all []string) {
	topic, all = w.newTopic(1), numbered(0, 0, 10)
	w.produce(topic, 0, all...)
	return topic, memsink.New(), all
}

func apply(_ context.Context, tx tx, m consumer.Message, _ epoch.Epoch) error {
	tx.Append(effects(m.Partition.Topic, m.Partition.Number), string(m.Value))
	return nil
}

func effects(topic string, n int32) string { return fmt.Sprintf("%s/%d", topic, n) }

// watched records the tenures of a process's source.
type watched struct{ s *system }

func (v watched) Identity() (group, name string) { return v.s.source.Identity() }

func (v watched) Run(ctx context.Context, joined func(error), own func(context.Context, consumer.Tenure)) error {
	return v.s.source.Run(ctx, joined, func(ctx context.Context, t consumer.Tenure) {
		v.s.record(ctx, t, func(g *grant) { own(ctx, watchedTenure{t, g}) })
	})
}

// watchedTenure records batches that a Read must not yield, for which consumer.Run halts.
type watchedTenure struct {
	consumer.Tenure
	g *grant
}

func (v watchedTenure) Read(ctx context.Context, from epoch.Fence) iter.Seq2[consumer.Batch, error] {
	return func(yield func(consumer.Batch, error) bool) {
		next := from.Next
		for b, err := range v.Tenure.Read(ctx, from) {
			if err == nil && b.Next <= next {
				w := v.g.p.w
				w.note(func() {
					w.violations = append(w.violations, fmt.Errorf("Read of %s yielded a batch that ends at %d, at position %d", v.g.name(), b.Next, next))
				})
				continue
			}
			next = b.Next
			if !yield(b, err) {
				return
			}
		}
	}
}

func (s *system) Observe(e consumer.Event) {
	s.w.note(func() { s.events = append(s.events, e) })
}

func saw[E consumer.Event](s *system, such func(E) bool) E {
	var found E
	s.w.await(fmt.Sprintf("%s observes such a %T", s.name, found), func() bool {
		for _, e := range s.events {
			if e, ok := e.(E); ok && such(e) {
				found = e
				return true
			}
		}
		return false
	})
	return found
}

// applied waits until a partition has as many effects as there are values, and compares them.
func (w *world) applied(db *memsink.Sink, topic string, n int32, values ...string) {
	list := effects(topic, n)
	w.poll(fmt.Sprintf("%d messages of %s are applied", len(values), list), func() bool {
		return len(db.List(list)) >= len(values)
	})
	if got := db.List(list); !slices.Equal(got, values) {
		w.fail("effects of %s: %s", list, difference(got, values))
	}
}

func (w *world) fence(db *memsink.Sink, g, topic string, n int32) epoch.Fence {
	return db.Fences()[epoch.Partition{Group: groupOf(g, []string{topic}), Topic: topic, Number: n}]
}

var systems = []history{
	churn(1), churn(2), churn(3),
	{
		claim: "a process that ends and starts again continues where it was",
		story: func(w *world) {
			topic, db := w.newTopic(2), memsink.New()
			var sent [2][]string
			for round := range 4 {
				for n := range int32(2) {
					more := numbered(n, 100*round, 100*(round+1))
					w.produce(topic, n, more...)
					sent[n] = append(sent[n], more...)
				}
				s := w.run(fmt.Sprint("run", round), db, memsink.Hooks{}, topic)
				w.applied(db, topic, 0, sent[0]...)
				w.applied(db, topic, 1, sent[1]...)
				s.leave()
			}
		},
	}, {
		claim: "messages that were produced before a group began are skipped only by the latest policy",
		rules: "R9",
		story: func(w *world) {
			topic, db, latest := w.newTopic(1), memsink.New(), memsink.New()
			w.produce(topic, 0, "before")
			w.run("earliest", db, memsink.Hooks{}, topic)
			w.applied(db, topic, 0, "before")
			s := w.runAs(&process{name: "latest", group: "late"}, latest, memsink.Hooks{}, options{Start: consumer.StartLatest}, topic)
			saw(s, func(consumer.Claimed) bool { return true })
			w.produce(topic, 0, "after")
			w.applied(db, topic, 0, "before", "after")
			w.applied(latest, topic, 0, "after")
		},
	}, {
		claim: "two groups on one database each apply everything",
		rules: "attack: two groups on one table",
		story: func(w *world) {
			topic, db := w.newTopic(1), memsink.New()
			all := numbered(0, 0, 200)
			w.produce(topic, 0, all[:100]...)
			one := w.runAs(&process{name: "one", group: "g1"}, db, memsink.Hooks{}, options{}, topic)
			two := w.runAs(&process{name: "two", group: "g2"}, db, memsink.Hooks{}, options{}, topic)
			w.produce(topic, 0, all[100:]...)
			w.poll("both groups are at the end", func() bool { return len(db.List(effects(topic, 0))) >= 400 })
			n := len(db.List(effects(topic, 0)))
			w.must(n == 400, "%d effects of 200 messages in two groups", n)
			one.leave()
			two.leave()
			if a, b := w.fence(db, "g1", topic, 0).Next, w.fence(db, "g2", topic, 0).Next; a != b {
				w.fail("the groups end at %d and %d", a, b)
			}
		},
	}, {
		claim: "commits whose acknowledgement is lost are neither repeated nor left out",
		rules: "R5, attack: lost commit acknowledgement, landed and not landed",
		story: func(w *world) {
			topic, db := w.newTopic(2), memsink.New()
			s := w.run("a", db, memsink.Hooks{
				Commit: func(_ context.Context, _ []epoch.Advance, do func() error) error { // also called at the same time
					switch rand.IntN(4) {
					case 0:
						return epoch.ErrInDoubt // not landed
					case 1:
						_ = do()
						return epoch.ErrInDoubt // landed
					}
					return do()
				},
			}, topic)
			for i := range 20 {
				for n := range int32(2) {
					w.produce(topic, n, numbered(n, 10*i, 10*i+10)...)
				}
				w.poll("some of it is applied", func() bool { return len(db.List(effects(topic, 0))) > 10*i })
			}
			for n := range int32(2) {
				w.applied(db, topic, n, numbered(n, 0, 200)...)
			}
			s.leave()
		},
	},
}

func churn(seed uint64) history {
	return history{
		claim: fmt.Sprintf("members join, leave and die while messages flow: every effect once, in order, none lost (seed %d)", seed),
		rules: "R1 to R8",
		story: func(w *world) {
			const partitions, rounds, burst = 4, 15, 20
			topic, db := w.newTopic(partitions), memsink.New()
			random := rand.New(rand.NewPCG(seed, 0))
			_, canFreeze := w.Harness.(Freezer)
			var live []*system
			for i := range rounds {
				if len(live) < 3 {
					live = append(live, w.run(fmt.Sprint("m", i), db, memsink.Hooks{}, topic))
				}
				for n := range int32(partitions) {
					w.produce(topic, n, numbered(n, burst*i, burst*(i+1))...)
				}
				w.poll("something is applied", func() bool {
					return len(db.List(effects(topic, 0))) > burst*i/2 || i%3 > 0
				})
				gone := random.IntN(len(live))
				switch random.IntN(4) {
				case 0:
				case 1:
					live[gone].stop()
					live = slices.Delete(live, gone, gone+1)
				case 2:
					if !canFreeze {
						continue
					}
					live[gone].freeze() // and never again heard of
					live[gone].stop()
					live = slices.Delete(live, gone, gone+1)
				case 3:
					if !canFreeze {
						continue
					}
					live[gone].freeze()
					for n := range int32(partitions) {
						w.poll("the others continue", func() bool {
							return len(db.List(effects(topic, n))) > burst*i/2 || len(live) == 1
						})
					}
					live[gone].thaw()
				}
			}
			w.run("last", db, memsink.Hooks{}, topic)
			for n := range int32(partitions) {
				w.applied(db, topic, n, numbered(n, 0, rounds*burst)...)
			}
		},
	}
}

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
