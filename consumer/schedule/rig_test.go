package schedule

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/cas/memstore"
	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/suites/bubble"
	"github.com/epochfence/epochfence/sinks/memsink"
)

type memJob = Job[*memsink.Tx]

const group = "billing"

// world is a store of leases, a database, and a log of what was said, in virtual time.
type world struct {
	*testing.T
	store *memstore.Store
	db    *memsink.Sink
	log   *slog.Logger

	mu   sync.Mutex
	said strings.Builder
}

func inWorld(t *testing.T, story func(w *world)) {
	t.Helper()
	t.Parallel()
	inWorldNow(t, story)
}

// inWorldNow is for a test that is parallel already.
func inWorldNow(t *testing.T, story func(w *world)) {
	t.Helper()
	bubble.Test(t, func(t *testing.T) {
		w := &world{T: t, store: memstore.New(), db: memsink.New()}
		w.log = slog.New(slog.NewTextHandler(w, nil))
		story(w)
	})
}

func (w *world) Write(line []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.said.Write(line)
}

func (w *world) says(what string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return strings.Contains(w.said.String(), what)
}

// pod is one process.
type pod struct {
	*world
	wire *wire
	sink *memsink.Sink
	jobs *Schedule[*memsink.Tx]
	stop context.CancelFunc
	done chan error

	mu     sync.Mutex
	events []consumer.Event
}

func (w *world) pod(name string, jobs ...memJob) *pod {
	return w.podWith(name, func(h consumer.Handlers[*memsink.Tx]) consumer.Handlers[*memsink.Tx] { return h }, consumer.Options{}, jobs...)
}

func (w *world) podWith(name string, with func(consumer.Handlers[*memsink.Tx]) consumer.Handlers[*memsink.Tx], o consumer.Options, jobs ...memJob) *pod {
	w.Helper()
	p := w.newPod(name, jobs...)
	p.start(with, o)
	return p
}

func (w *world) newPod(name string, jobs ...memJob) *pod {
	w.Helper()
	p := &pod{world: w, wire: &wire{Watcher: w.store}, sink: w.db.Open(), done: make(chan error, 1)}
	var err error
	p.jobs, err = New(Options{Store: p.wire, Group: group, Name: name, Logger: w.log}, jobs...)
	if err != nil {
		w.Fatal(err)
	}
	return p
}

func (p *pod) start(with func(consumer.Handlers[*memsink.Tx]) consumer.Handlers[*memsink.Tx], o consumer.Options) {
	ctx, stop := context.WithCancel(p.Context())
	p.stop = stop
	o.MaxBatch, o.Committers, o.Logger = 1, 4, p.log
	o.Observe = func(e consumer.Event) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.events = append(p.events, e)
	}
	go func() { p.done <- consumer.Run(ctx, p.jobs, p.sink, with(p.jobs.Handlers()), o) }()
}

func (p *pod) end() {
	p.Helper()
	p.stop()
	if err := <-p.done; err != nil {
		p.Errorf("Run: %v", err)
	}
}

func (p *pod) halted() (h consumer.Halted, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, e := range slices.Backward(p.events) {
		if h, ok := e.(consumer.Halted); ok {
			return h, true
		}
	}
	return h, false
}

// writes is a job of one transaction, which writes down its tick.
func writes(name, cron string) memJob {
	return memJob{Name: name, Cron: cron, Do: func(_ context.Context, tx *memsink.Tx, t Tick, _ epoch.Epoch) error {
		tx.Append(name, t.line())
		return nil
	}}
}

func (t Tick) line() string {
	line := t.At.UTC().Format("02 15:04:05")
	if t.Step > 0 {
		line += fmt.Sprint(" step ", t.Step)
	}
	if t.Requested {
		line += " requested"
	}
	if t.Missed > 0 {
		line += fmt.Sprint(" missed ", t.Missed)
	}
	return line
}

func (w *world) ran(name string, want ...string) {
	w.Helper()
	synctest.Wait()
	if got := w.db.List(name); !slices.Equal(got, want) {
		w.Errorf("%s ran at %q, want %q", name, got, want)
	}
}

// until sleeps until a time of the bubble's first month, which is January 2000.
func (w *world) until(at string) {
	w.Helper()
	day, err := time.Parse("02 15:04:05", at)
	if err != nil {
		w.Fatal(err)
	}
	<-time.After(time.Until(day.AddDate(2000, 0, 0)))
	synctest.Wait()
}

func (w *world) fence(job string) epoch.Fence {
	w.Helper()
	f, err := epoch.FenceOf(w.Context(), w.db, epoch.Partition{Group: group, Topic: job})
	if err != nil {
		w.Fatal(err)
	}
	return f
}

var errCut = errors.New("the store is out of reach")

// wire is a process's way to the store. While it is cut, each request fails.
type wire struct {
	cas.Watcher
	mu  sync.Mutex
	cut bool
}

func (w *wire) set(cut bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cut = cut
}

func (w *wire) pass() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.cut {
		return errCut
	}
	return nil
}

func (w *wire) Now(ctx context.Context) (time.Time, error) {
	if err := w.pass(); err != nil {
		return time.Time{}, err
	}
	return w.Watcher.(cas.Clock).Now(ctx)
}

func (w *wire) Get(ctx context.Context, key string) (cas.Item, error) {
	if err := w.pass(); err != nil {
		return cas.Item{}, err
	}
	return w.Watcher.Get(ctx, key)
}

func (w *wire) Swap(ctx context.Context, seen cas.Item, value, note []byte) (cas.Item, error) {
	if err := w.pass(); err != nil {
		return cas.Item{}, err
	}
	return w.Watcher.Swap(ctx, seen, value, note)
}

func (w *wire) Delete(ctx context.Context, seen cas.Item) error {
	if err := w.pass(); err != nil {
		return err
	}
	return w.Watcher.Delete(ctx, seen)
}

func (w *wire) List(ctx context.Context, prefix string) iter.Seq2[cas.Item, error] {
	if err := w.pass(); err != nil {
		return func(yield func(cas.Item, error) bool) { yield(cas.Item{}, err) }
	}
	return w.Watcher.List(ctx, prefix)
}

func (w *wire) Facts(ctx context.Context) (cas.Facts, error) {
	if err := w.pass(); err != nil {
		return cas.Facts{}, err
	}
	return w.Watcher.Facts(ctx)
}

// Watch reports changes while the wire is not cut.
func (w *wire) Watch(ctx context.Context, prefix string) iter.Seq2[cas.Item, error] {
	return func(yield func(cas.Item, error) bool) {
		for item, err := range w.Watcher.Watch(ctx, prefix) {
			if cut := w.pass(); cut != nil {
				yield(cas.Item{}, cut)
				return
			}
			if !yield(item, err) {
				return
			}
		}
	}
}
