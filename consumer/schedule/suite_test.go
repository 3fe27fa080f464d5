package schedule

import (
	"context"
	"fmt"
	"iter"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/epochfence/epochfence/cas/memstore"
	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/sourcetest"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/sinks/memsink"
)

func TestSuite(t *testing.T) {
	sourcetest.RunInBubble(t, func(testing.TB) sourcetest.Harness {
		return &harness{store: memstore.New(), topics: map[string][]*ticks{}, wires: map[consumer.Source]*wire{}}
	})
}

// harness plays the suite of sources. A topic is a job with as many partitions as it takes. Its ticks are
// in the past, one for each message that was produced, and each tick's message is replaced by that one.
type harness struct {
	store *memstore.Store

	mu     sync.Mutex
	topics map[string][]*ticks
	wires  map[consumer.Source]*wire
}

func (h *harness) NewTopic(_ testing.TB, partitions int32) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	name := fmt.Sprint("topic", len(h.topics))
	for range partitions {
		h.topics[name] = append(h.topics[name], &ticks{})
	}
	return name
}

func (h *harness) of(p epoch.Partition) *ticks {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.topics[p.Topic][p.Number]
}

func (h *harness) Produce(_ testing.TB, topic string, n int32, ms ...consumer.Message) {
	h.of(epoch.Partition{Topic: topic, Number: n}).add(ms)
}

func (h *harness) NewSource(t testing.TB, group string, topics []string, member string) consumer.Source {
	var jobs []memJob
	for _, topic := range topics {
		jobs = append(jobs, memJob{Name: topic, Cron: "@daily", CatchUp: CatchUpAll, Overrun: OverrunQueue, Do: doNothing})
	}
	w := &wire{Watcher: h.store}
	s, err := New(Options{Store: w, Group: group, Name: member, LeaseTTL: 2 * time.Second, StartTimeout: time.Minute, Logger: slog.New(slog.DiscardHandler)}, jobs...)
	if err != nil {
		t.Fatal(err)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	s.look = 20 * time.Millisecond
	for _, topic := range topics {
		s.resources[topic] = int32(len(h.topics[topic]))
	}
	produced := &suiteSource{s, h}
	h.wires[produced] = w
	return produced
}

func doNothing(context.Context, *memsink.Tx, Tick, epoch.Epoch) error { return nil }

func (h *harness) Freeze(_ testing.TB, s consumer.Source) (thaw func()) {
	h.mu.Lock()
	w := h.wires[s]
	h.mu.Unlock()
	w.set(true)
	return func() { w.set(false) }
}

func (h *harness) Retains() {}

func (h *harness) ReadsClock() {}

// Carried keeps the time of the tick.
func (h *harness) Carried(m consumer.Message) consumer.Message {
	m.Time = time.Time{}
	return m
}

// ticks is a timetable of what was produced.
type ticks struct {
	mu       sync.Mutex
	messages []consumer.Message
}

const suiteBegin = 900_000_000 // seconds since 1970: all is in the past

func (l *ticks) add(ms []consumer.Message) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, m := range ms {
		m.Key, m.Value, m.Headers = slices.Clone(m.Key), slices.Clone(m.Value), slices.Clone(m.Headers)
		l.messages = append(l.messages, m)
	}
}

func (l *ticks) next(t time.Time) time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := max(t.Unix()-suiteBegin+1, 0)
	if n >= int64(len(l.messages)) {
		return time.Time{}
	}
	return time.Unix(suiteBegin+n, 0).UTC()
}

func (l *ticks) at(t time.Time) consumer.Message {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.messages[t.Unix()-suiteBegin]
}

func (l *ticks) end() epoch.Position {
	l.mu.Lock()
	defer l.mu.Unlock()
	return suitePosition(len(l.messages))
}

func suitePosition(n int) epoch.Position {
	return epoch.Position{Offset: place{at: time.Unix(suiteBegin+int64(n), 0)}.offset(), Mark: epoch.NoMark}
}

// suiteSource hands out tenures whose timetable is what was produced.
type suiteSource struct {
	*Schedule[*memsink.Tx]
	h *harness
}

func (s *suiteSource) Run(ctx context.Context, joined func(error), own func(context.Context, consumer.Tenure)) error {
	return s.Schedule.Run(ctx, joined, func(ctx context.Context, t consumer.Tenure) {
		inner := t.(*tenure)
		log := s.h.of(inner.Origin().Partition)
		inner.plan.timetable = log
		own(ctx, &suiteTenure{inner, s, log})
	})
}

type suiteTenure struct {
	*tenure
	s   *suiteSource
	log *ticks
}

// Starts: ticks are in the past here, where a job would have none.
func (t *suiteTenure) Starts(ctx context.Context, policy consumer.StartPolicy) ([]epoch.Start, error) {
	starts, err := t.tenure.Starts(ctx, policy)
	if err != nil {
		return nil, err
	}
	first := starts[0]
	starts = nil
	for n := range t.s.resources[t.Name] {
		s := first
		s.Partition.Number = n
		s.Earliest = suitePosition(0)
		if s.Next = s.Earliest; policy == consumer.StartLatest {
			s.Next = t.s.h.of(s.Partition).end()
		}
		starts = append(starts, s)
	}
	return starts, nil
}

func (t *suiteTenure) Read(ctx context.Context, from epoch.Fence) iter.Seq2[consumer.Batch, error] {
	return func(yield func(consumer.Batch, error) bool) {
		for b, err := range t.tenure.Read(ctx, from) {
			for i, m := range b.Messages {
				was := t.log.at(m.Time)
				m.Key, m.Value, m.Headers = was.Key, was.Value, was.Headers
				b.Messages[i] = m
			}
			if !yield(b, err) {
				return
			}
		}
	}
}
