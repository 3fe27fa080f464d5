package gocronlock

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/go-co-op/gocron/v2"
	"github.com/google/uuid"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/cas/memstore"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/suites/bubble"
	"github.com/epochfence/epochfence/lease"
	"github.com/epochfence/epochfence/lease/leasetest"
	"github.com/epochfence/epochfence/sinks/memsink"
)

const invoices = "invoices"

// process is one of several that run the same jobs.
type process struct {
	t      *testing.T
	member *lease.Member
	locker *Locker
	gocron.Scheduler
}

func start(t *testing.T, s cas.Store, o Options) *process {
	t.Helper()
	m, err := lease.Open(t.Context(), s, lease.Options{Group: "billing", Logger: slog.New(slog.NewTextHandler(t.Output(), nil))})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Close)
	p := &process{t: t, member: m, locker: New(m, o)}
	p.Scheduler, err = gocron.NewScheduler(gocron.WithDistributedLocker(p.locker))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.shutdown)
	p.Start()
	return p
}

func (p *process) shutdown() {
	if err := p.Shutdown(); err != nil {
		p.t.Errorf("shutdown: %v", err)
	}
}

// each runs a task every minute, from now on, and returns what its runs have returned.
func (p *process) each(task func(context.Context) error, o ...gocron.JobOption) *results {
	p.t.Helper()
	r := &results{}
	failed := gocron.AfterJobRunsWithError(func(_ uuid.UUID, _ string, err error) { r.add(err) })
	skipped := gocron.AfterLockError(func(_ uuid.UUID, _ string, err error) { r.skip(err) })
	o = append([]gocron.JobOption{gocron.WithName(invoices), gocron.WithEventListeners(failed, skipped)}, o...)
	if _, err := p.NewJob(gocron.DurationJob(time.Minute), gocron.NewTask(task), o...); err != nil {
		p.t.Fatal(err)
	}
	return r
}

type results struct {
	mu      sync.Mutex
	failed  []error
	skipped []error
}

func (r *results) add(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failed = append(r.failed, err)
}

func (r *results) skip(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.skipped = append(r.skipped, err)
}

func (r *results) all() (failed, skipped []error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.failed), slices.Clone(r.skipped)
}

// do is what a task does.
func do(ctx context.Context, l *Locker, sink *memsink.Sink, job string, work lease.Work[*memsink.Tx]) error {
	run, err := l.Run(job)
	if err != nil {
		return err
	}
	return Do(ctx, run, sink, work)
}

func writes(list, line string) lease.Work[*memsink.Tx] {
	return func(_ context.Context, tx *memsink.Tx, _ epoch.Epoch) error {
		tx.Append(list, line)
		return nil
	}
}

// The second process reaches each tick 100 ms after the first. Without a splay both run it.
func TestEachTickOfTwoSchedulersRunsOnce(t *testing.T) {
	for name, c := range map[string]struct {
		splay time.Duration
		want  int
	}{"by default": {0, 20}, "without a splay": {-1, 40}} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				store, sink := memstore.New(), memsink.New()
				for range 2 {
					p := start(t, store, Options{Splay: c.splay})
					p.each(func(ctx context.Context) error {
						return do(ctx, p.locker, sink, invoices, writes("ticks", time.Now().Format("15:04")))
					})
					<-time.After(100 * time.Millisecond)
				}
				<-time.After(20*time.Minute + time.Second)
				ticks := sink.List("ticks")
				each := slices.Compact(slices.Clone(ticks))
				if len(ticks) != c.want || len(each) != 20 {
					t.Errorf("%d runs of %d ticks, want %d of 20: %q", len(ticks), len(each), c.want, ticks)
				}
			})
		})
	}
}

// One process is frozen in its run until the other has taken the job over and done it, and thawed. What
// is to be done is found out by reading, before the freeze. Under the lock alone, the one that was
// frozen does it again.
func TestARunThatWasFrozenCommitsNothing(t *testing.T) {
	for name, c := range map[string]struct {
		do   func(context.Context, *process, *memsink.Sink, *book, func()) error
		want []string
	}{
		"fenced": {func(ctx context.Context, p *process, s *memsink.Sink, _ *book, freeze func()) error {
			view := s.Open()
			view.Script(memsink.Hooks{Commit: func(_ context.Context, _ []epoch.Advance, do func() error) error {
				freeze()
				return do()
			}})
			return do(ctx, p.locker, view, invoices, func(_ context.Context, tx *memsink.Tx, _ epoch.Epoch) error {
				if len(s.List("invoices")) == 0 { // outside the transaction: only the fence can refuse it
					tx.Append("invoices", "anna")
				}
				return nil
			})
		}, []string{"anna"}},
		"under the lock alone": {func(_ context.Context, _ *process, _ *memsink.Sink, b *book, freeze func()) error {
			due := len(b.all()) == 0
			freeze()
			if due {
				b.add("anna")
			}
			return nil
		}, []string{"anna", "anna"}},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				store, sink, unfenced := memstore.New(), memsink.New(), &book{}
				way, cut := leasetest.Cuttable(store)
				a, b := start(t, way, Options{}), start(t, store, Options{})
				frozen, thawed := make(chan func()), make(chan struct{})
				freeze := sync.OnceFunc(func() {
					frozen <- cut()
					<-thawed
				})
				runs := a.each(func(ctx context.Context) error { return c.do(ctx, a, sink, unfenced, freeze) })
				<-time.After(100 * time.Millisecond)
				b.each(func(ctx context.Context) error { return c.do(ctx, b, sink, unfenced, func() {}) })
				mend := <-frozen
				<-time.After(2 * time.Minute)
				if done := append(sink.List("invoices"), unfenced.all()...); !slices.Equal(done, []string{"anna"}) {
					t.Fatalf("before the thaw: %q", done)
				}
				mend()
				close(thawed)
				<-time.After(2 * time.Minute)
				failed, _ := runs.all()
				if name == "fenced" && (len(failed) != 1 || !errors.Is(failed[0], epoch.ErrStale) || !errors.Is(failed[0], lease.ErrLost)) {
					t.Errorf("the frozen run returned %v", failed)
				}
				if done := append(sink.List("invoices"), unfenced.all()...); !slices.Equal(done, c.want) {
					t.Errorf("after the thaw: %q, want %q", done, c.want)
				}
			})
		})
	}
}

// book is a database that compares nothing.
type book struct {
	mu    sync.Mutex
	lines []string
}

func (b *book) add(line string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.lines = append(b.lines, line)
}

func (b *book) all() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.lines)
}

func TestWorkEndsWithTheLeaseAndTheNextRunHasAnother(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		sink := memsink.New()
		way, cut := leasetest.Cuttable(memstore.New())
		p := start(t, way, Options{})
		first := true
		runs := p.each(func(ctx context.Context) error {
			return do(ctx, p.locker, sink, invoices, func(work context.Context, tx *memsink.Tx, _ epoch.Epoch) error {
				tx.Append("ticks", time.Now().Format("15:04"))
				if !first {
					return nil
				}
				first = false
				defer cut()()
				<-work.Done()
				if ctx.Err() != nil {
					t.Error("gocron's context has ended too")
				}
				return context.Cause(work)
			})
		})
		<-time.After(2*time.Minute + time.Second)
		failed, _ := runs.all()
		if len(failed) != 1 || !errors.Is(failed[0], lease.ErrExpired) {
			t.Errorf("the first run returned %v", failed)
		}
		if ticks := sink.List("ticks"); len(ticks) != 1 {
			t.Errorf("the next run has left %q", ticks)
		}
	})
}

func TestARunIsSkippedWhileTheLastOneLasts(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		store, sink := memstore.New(), memsink.New()
		a, b := start(t, store, Options{}), start(t, store, Options{})
		var skips []*results
		for _, p := range []*process{a, b} {
			skips = append(skips, p.each(func(ctx context.Context) error {
				run, err := p.locker.Run(invoices)
				if err != nil {
					return err
				}
				h, err := run.Held()
				if err != nil {
					return err
				}
				for range 3 {
					select {
					case <-time.After(50 * time.Second):
					case <-ctx.Done(): // the scheduler waits busily for its jobs, so no time passes in a bubble
					}
					h.Progress()
				}
				return Do(ctx, run, sink, writes("ends", time.Now().Format("15:04:05")))
			}))
		}
		<-time.After(6*time.Minute + time.Second)
		if ends := sink.List("ends"); len(ends) != 1 {
			t.Errorf("%q", ends)
		}
		total := 0
		for _, r := range skips {
			failed, skipped := r.all()
			for _, err := range skipped {
				if !errors.Is(err, lease.ErrHeld) {
					t.Error(err)
				}
			}
			if total += len(skipped); len(failed) > 0 {
				t.Error(failed)
			}
		}
		if total != 10 { // six ticks of two processes, of which the first and the fourth ran in one
			t.Errorf("%d runs were skipped", total)
		}
	})
}

func TestWorkNeedsTheLeaseOfItsRun(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		store, sink := memstore.New(), memsink.New()
		p := start(t, store, Options{})
		check := func(job string) {
			if err := do(t.Context(), p.locker, sink, job, writes("lines", job)); !errors.Is(err, ErrNotLocked) {
				t.Errorf("%v", err)
			}
			if _, err := p.locker.Run(job); !errors.Is(err, ErrNotLocked) {
				t.Errorf("%v", err)
			}
		}
		ran := make(chan struct{})
		p.each(func(context.Context) error {
			defer close(ran)
			check("another")
			run, err := p.locker.Run(invoices)
			if err != nil {
				t.Error(err)
				return nil
			}
			h, err := run.Held()
			if err != nil {
				t.Error(err)
				return nil
			}
			if h.Name != invoices || h.Err() != nil {
				t.Errorf("%s, %v", h.Resource, h.Err())
			}
			return nil
		}, gocron.WithLimitedRuns(1))
		check(invoices)
		<-ran
		<-time.After(100 * time.Millisecond) // within the splay
		check(invoices)
		if lines := sink.List("lines"); len(lines) > 0 {
			t.Errorf("%q", lines)
		}
	})
}

func TestAGoroutineThatOutlivesItsRunCommitsNothingUnderTheNextOne(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		store, sink := memstore.New(), memsink.New()
		p := start(t, store, Options{})
		runs, late := 0, make(chan error, 1)
		var first *Run
		p.each(func(ctx context.Context) error {
			run, err := p.locker.Run(invoices)
			if err != nil {
				return err
			}
			if runs++; runs == 1 {
				first = run
				return Do(ctx, run, sink, writes("lines", "first"))
			}
			late <- Do(ctx, first, sink, writes("lines", "late"))
			return Do(ctx, run, sink, writes("lines", "second"))
		}, gocron.WithLimitedRuns(2))
		if err := <-late; !errors.Is(err, ErrNotLocked) {
			t.Errorf("in the second run, the goroutine of the first: %v", err)
		}
		p.shutdown()
		if lines := sink.List("lines"); !slices.Equal(lines, []string{"first", "second"}) {
			t.Errorf("%q", lines)
		}
	})
}

// gocron's context has ended when it unlocks.
func TestTheLeaseIsFreeWhenTheSchedulerWasShutDown(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		store := memstore.New()
		a, b := start(t, store, Options{}), start(t, store, Options{})
		running := make(chan struct{})
		a.each(func(ctx context.Context) error {
			close(running)
			<-ctx.Done()
			return ctx.Err()
		})
		<-running
		<-time.After(time.Second) // past the splay
		if _, err := b.locker.Lock(t.Context(), invoices); !errors.Is(err, lease.ErrHeld) {
			t.Errorf("while it runs: %v", err)
		}
		a.shutdown()
		<-time.After(time.Second)
		lock, err := b.locker.Lock(t.Context(), invoices)
		if err != nil {
			t.Fatal(err)
		}
		if err := lock.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := b.locker.Lock(ended, "another"); !errors.Is(err, context.Canceled) {
			t.Errorf("%v", err)
		}
	})
}

func TestUnlockSaysThatTheLeaseWasLost(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		p := start(t, memstore.New(), Options{})
		lock, err := p.locker.Lock(t.Context(), invoices)
		if err != nil {
			t.Fatal(err)
		}
		p.member.Close()
		if err := lock.Unlock(t.Context()); !errors.Is(err, lease.ErrLost) {
			t.Errorf("%v", err)
		}
	})
}
