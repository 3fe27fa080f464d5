package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/cas/memstore"
	"github.com/epochfence/epochfence/cas/natsstore"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/natstest"
	"github.com/epochfence/epochfence/lease"
	"github.com/epochfence/epochfence/sinks/pgsink"
	"github.com/epochfence/epochfence/sinks/sqlsink"
)

// desk is a sink where work under a lock writes lines.
type desk[TX any] struct {
	sink  epoch.Sink[TX]
	write func(ctx context.Context, tx TX, line string) error
	lines func() []string
}

func TestWorkUnderALockIsCommittedOnceByWhoHasIt(t *testing.T) {
	for name, leases := range map[string]func(t *testing.T) cas.Store{"leases in memory": inMemory, "leases on NATS": onNATS} {
		t.Run(name+", effects in PostgreSQL", func(t *testing.T) {
			t.Parallel()
			d := newPostgres(t).granted()
			takeTurns(t, leases(t), desk[pgsink.Tx]{d.sink, func(ctx context.Context, tx pgsink.Tx, line string) error {
				return d.handle(ctx, tx, epoch.Message{Value: []byte(line)}, 0)
			}, func() []string { return values(d.applied()) }})
		})
		t.Run(name+", effects in SQLite", func(t *testing.T) {
			t.Parallel()
			d := newSQLite(t)
			takeTurns(t, leases(t), desk[*sqlsink.Tx]{d.sink, func(ctx context.Context, tx *sqlsink.Tx, line string) error {
				return d.handle(ctx, tx, epoch.Message{Value: []byte(line)}, 0)
			}, func() []string { return values(d.applied()) }})
		})
	}
}

func values(all []effect) (lines []string) {
	for _, e := range all {
		lines = append(lines, e.value)
	}
	return lines
}

func inMemory(*testing.T) cas.Store { return memstore.New() }

func onNATS(t *testing.T) cas.Store {
	t.Helper()
	s, err := natsstore.Open(t.Context(), natstest.Start(t).JetStream(t), natsstore.Options{Bucket: "leases"})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// severed is a store that one process cannot reach once it is cut.
type severed struct {
	cas.Store
	mu  sync.Mutex
	cut bool
}

func (s *severed) sever() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cut = true
}

var errSevered = errors.New("the network was cut")

func (s *severed) Swap(ctx context.Context, seen cas.Item, value, note []byte) (cas.Item, error) {
	s.mu.Lock()
	cut := s.cut
	s.mu.Unlock()
	if cut {
		return cas.Item{}, errSevered
	}
	return s.Store.Swap(ctx, seen, value, note)
}

// deaf is the sink of a process that does not see that its lease is over.
type deaf[TX any] struct{ epoch.Sink[TX] }

func (d deaf[TX]) Commit(ctx context.Context, as []epoch.Advance, calls ...func(context.Context, TX) error) error {
	return d.Sink.Commit(context.WithoutCancel(ctx), as, calls...)
}

// takeTurns has four processes work under one lock. The first one is cut off from the leases and frozen
// in its work, until another one has done it.
func takeTurns[TX any](t *testing.T, leases cas.Store, d desk[TX]) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	member := func(s cas.Store, name string) *lease.Member {
		m, err := lease.Open(ctx, s, lease.Options{Group: "reports", TTL: 2 * time.Second, Name: name, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(m.Close)
		return m
	}
	work := func(line string, before func()) lease.Work[TX] {
		return func(ctx context.Context, tx TX, _ epoch.Epoch) error {
			err := d.write(ctx, tx, line)
			before()
			return err
		}
	}
	thawed, reached, done := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	link := &severed{Store: leases}
	frozen := member(link, "frozen")
	go func() {
		done <- lease.Do(ctx, frozen, deaf[TX]{d.sink}, "nightly", work("frozen", func() {
			link.sever()
			close(reached)
			<-thawed
		}))
	}()
	<-reached
	var want []string
	var all sync.WaitGroup
	for n := range 3 {
		m := member(leases, fmt.Sprint("m", n))
		for i := range 4 {
			line := fmt.Sprintf("m%d-%d", n, i)
			want = append(want, line)
			all.Go(func() {
				if err := lease.Do(ctx, m, d.sink, "nightly", work(line, func() {})); err != nil {
					t.Errorf("%s: %v", line, err)
				}
			})
		}
	}
	all.Wait()
	close(thawed)
	if err := <-done; !errors.Is(err, lease.ErrLost) {
		t.Errorf("the frozen one: %v", err)
	}
	got := d.lines()
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("the lines are %q, want %q", got, want)
	}
}
