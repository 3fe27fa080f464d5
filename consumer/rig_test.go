package consumer_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/memsource"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/suites/bubble"
	"github.com/epochfence/epochfence/sinks/memsink"
)

// The tests of this package run consumer.Run against a log and a sink in
// memory, in a bubble: time is virtual, and "settled" means that every goroutine
// waits for something that only the test or the clock can bring.

type (
	tx       = *memsink.Tx
	options  = consumer.Options
	handlers = consumer.Handlers[tx]
	handler  = consumer.Handler[tx]

	confirmation = memsource.Confirmation
)

// each is what most tests hand to Run.
func each(h handler) handlers { return consumer.Each(h) }

// rig is one topic, one database, and whatever processes a test starts.
type rig struct {
	*testing.T
	log   *memsource.Log
	sink  *memsink.Sink
	trace slog.Handler
}

func inBubble(t *testing.T, partitions int32, test func(r *rig)) {
	t.Helper()
	bubble.Test(t, func(t *testing.T) {
		test(&rig{T: t, log: memsource.New("orders", partitions), sink: memsink.New(), trace: newTracer(t)})
	})
}

func (r *rig) group() *memsource.Group { return r.log.Group(memsource.DefaultGroup) }

func (r *rig) partition(n int32) epoch.Partition {
	return epoch.Partition{Group: memsource.DefaultGroup, Topic: r.log.Name(), Number: n}
}

// process is one running consumer.Run.
type process struct {
	rig    *rig
	member *memsource.Member
	sink   *memsink.Sink
	stop   context.CancelFunc
	done   chan error

	mu     sync.Mutex
	events []consumer.Event
}

// start runs a process of its own: a member, and its own handle on the database,
// with whatever faults the hooks bring.
func (r *rig) start(name string, h handlers, o options, faults ...memsink.Hooks) *process {
	p := r.process(name, faults)
	p.run(func(ctx context.Context) error {
		return consumer.Run(ctx, p.member, p.sink, h, p.watched(o))
	})
	return p
}

func (r *rig) process(name string, faults []memsink.Hooks) *process {
	p := &process{rig: r, member: r.group().Member(name), sink: r.sink.Open(), done: make(chan error, 1)}
	for _, h := range faults {
		p.sink.Script(h)
	}
	return p
}

// pass lets virtual time pass.
func (r *rig) pass(d time.Duration) { <-time.After(d) }

// applied waits until every message is applied, and until it is known to the process that did it.
func (r *rig) applied() {
	<-r.group().UntilApplied(r.Context()).Done()
	synctest.Wait()
}

func (p *process) run(f func(ctx context.Context) error) {
	ctx, stop := context.WithCancel(p.rig.Context())
	p.stop = stop
	go func() { p.done <- f(ctx) }()
}

func (p *process) watched(o options) options {
	o.Observe = p.Observe
	if o.Logger == nil {
		o.Logger = slog.New(p.rig.trace)
	}
	return o
}

func (p *process) Observe(e consumer.Event) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.events = append(p.events, e)
}

// end stops the process as SIGTERM would and wants a clean end.
func (p *process) end() {
	p.rig.Helper()
	p.stop()
	if err := <-p.done; err != nil {
		p.rig.Fatalf("Run: %v", err)
	}
}

// seen returns the events of one type.
func seen[E consumer.Event](p *process) []E {
	p.mu.Lock()
	defer p.mu.Unlock()
	var es []E
	for _, e := range p.events {
		if e, ok := e.(E); ok {
			es = append(es, e)
		}
	}
	return es
}

// record is the usual handler of these tests: it appends each value to the list
// of its partition.
func record(_ context.Context, tx tx, m consumer.Message, _ epoch.Epoch) error {
	tx.Append(list(m.Partition.Number), string(m.Value))
	return nil
}

func list(n int32) string { return fmt.Sprintf("partition %d", n) }

// fill appends count messages to a partition and returns what record makes of
// them.
func (r *rig) fill(n int32, count int) []string {
	values := make([]string, count)
	for i := range values {
		values[i] = fmt.Sprintf("%d/%d", n, i)
	}
	r.log.Append(n, values...)
	return values
}

// wantEffects compares everything a partition's messages did.
func (r *rig) wantEffects(n int32, want ...string) {
	r.Helper()
	if got := r.sink.List(list(n)); strings.Join(got, " ") != strings.Join(want, " ") {
		r.Errorf("effects of partition %d:\n got %v\nwant %v", n, got, want)
	}
}

func (r *rig) wantNext(n int32, want epoch.Offset) {
	r.Helper()
	if got := r.sink.Fences()[r.partition(n)].Next; got != want {
		r.Errorf("the fence of partition %d is at %d, want %d", n, got, want)
	}
}

func wantOne[E consumer.Event](p *process) E {
	p.rig.Helper()
	es := seen[E](p)
	if len(es) != 1 {
		p.rig.Fatalf("%d events %T, want one; all events: %v", len(es), *new(E), p.events)
	}
	return es[0]
}
