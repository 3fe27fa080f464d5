package pgstore_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/schedule"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/servers/pgtest"
	"github.com/epochfence/epochfence/internal/suites/pulsetest"
	"github.com/epochfence/epochfence/lease"
	"github.com/epochfence/epochfence/sinks/pgsink"
)

func direct(address string) string { return address }

// desk is a database with the tables of leases and of a sink.
func desk(t *testing.T) *pgtest.Database {
	t.Helper()
	db := pgtest.Start(t)
	p := pool(t, db.URL, direct)
	if err := pgsink.Migrate(t.Context(), p, pgsink.Options{}); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Exec(t.Context(), "create table report (line text)"); err != nil {
		t.Fatal(err)
	}
	return db
}

func sinkOn(t *testing.T, p *pgxpool.Pool) *pgsink.Sink {
	t.Helper()
	s, err := pgsink.Open(t.Context(), p, pgsink.Options{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestRequestsDoNotWaitForAPoolThatIsInUse(t *testing.T) {
	t.Parallel()
	db := desk(t)
	p := pool(t, db.URL+"&pool_max_conns=2", direct)
	s := open(t, p)
	for range 2 {
		conn, err := p.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Release()
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	var all sync.WaitGroup
	for n := range 8 {
		all.Go(func() {
			_, err := s.Facts(ctx)
			item, swapped := s.Swap(ctx, cas.Item{Key: fmt.Sprint("billing/", n)}, []byte("v"), nil)
			_, got := s.Get(ctx, item.Key)
			_, both := s.GetAll(ctx, []string{item.Key})
			for _, failed := range s.List(ctx, "billing/") {
				err = errors.Join(err, failed)
			}
			if err := errors.Join(err, swapped, got, both, s.Delete(ctx, item)); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if n := p.Stat().AcquiredConns(); n != 2 {
		t.Errorf("%d connections of the pool are in use", n)
	}
}

// The quickstart of jobs, with more committers than connections.
func TestLeasesOutliveWorkThatUsesAllConnectionsOfThePool(t *testing.T) {
	t.Parallel()
	db := desk(t)
	p := pool(t, db.URL+"&pool_max_conns=4", direct)
	var jobs []schedule.Job[pgsink.Tx]
	for n := range 16 {
		jobs = append(jobs, schedule.Job[pgsink.Tx]{Name: fmt.Sprint("job", n), Cron: "* * * * * *", Do: func(ctx context.Context, tx pgsink.Tx, tick schedule.Tick, _ epoch.Epoch) error {
			_, err := tx.Exec(ctx, "insert into report select $1 from pg_sleep(0.5)", fmt.Sprint(n, " ", tick.At))
			return err
		}})
	}
	const ttl = 6 * time.Second
	quiet := slog.New(slog.DiscardHandler)
	source, err := schedule.New(schedule.Options{Store: open(t, p), Group: "billing", LeaseTTL: ttl, Logger: quiet}, jobs...)
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	ended, lost, failed := map[consumer.Outcome]int{}, []error(nil), []consumer.Transacted(nil)
	ctx, cancel := context.WithTimeout(t.Context(), 6*ttl)
	defer cancel()
	other := open(t, pool(t, db.URL, direct)) // which has connections of its own
	pulse := pulsetest.Start(t, func(ctx context.Context) error { _, err := other.Get(ctx, "pulse"); return err })
	err = consumer.Run(ctx, source, sinkOn(t, p), source.Handlers(), consumer.Options{MaxBatch: 1, Committers: 8, Logger: quiet, Observe: func(e consumer.Event) {
		mu.Lock()
		defer mu.Unlock()
		switch e := e.(type) {
		case consumer.Transacted:
			ended[e.Outcome]++
			if e.Outcome != consumer.OutcomeCommitted && ctx.Err() == nil { // what the end of Run cuts off is none
				failed = append(failed, e)
			}
		case consumer.Lost:
			lost = append(lost, e.Cause)
		}
	}})
	if err != nil {
		t.Error(err)
	}
	if stood := pulse.Stalled(); ended[consumer.OutcomeCommitted] < 50 || len(lost)+len(failed) > 0 && stood < ttl/6 {
		t.Errorf("lost: %v; failed: %+v; transactions: %v; nothing stood still for longer than %v", lost, failed, ended, stood)
	}
	t.Logf("transactions: %v", ended)
}

// locker is a process that works under locks, on a pool of its own.
func locker(t *testing.T, db *pgtest.Database, o lease.Options) (*lease.Member, *pgsink.Sink) {
	t.Helper()
	p := pool(t, db.URL, direct)
	o.Group = "billing"
	m, err := lease.Open(t.Context(), open(t, p), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Close)
	return m, sinkOn(t, p)
}

func TestProcessesThatWorkUnderALockWithoutRestTakeTurns(t *testing.T) {
	t.Parallel()
	db := desk(t)
	ctx, cancel := context.WithTimeout(t.Context(), 40*time.Second)
	defer cancel()
	var all sync.WaitGroup
	turns := make([]int, 3)
	for n := range turns {
		m, sink := locker(t, db, lease.Options{})
		all.Go(func() {
			for ctx.Err() == nil {
				err := lease.Do(ctx, m, sink, "nightly", func(ctx context.Context, tx pgsink.Tx, _ epoch.Epoch) error {
					_, err := tx.Exec(ctx, "insert into report select 'x' from pg_sleep(0.02)")
					return err
				})
				if err == nil {
					turns[n]++
				} else if ctx.Err() == nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	t.Logf("they have had %d turns", turns)
	for _, n := range turns {
		if n < (turns[0]+turns[1]+turns[2])/10 {
			t.Errorf("they have had %d turns", turns)
		}
	}
}

// The zero Options of lease and pgsink allow a minute.
func TestWorkOfFortySecondsIsDoneOnce(t *testing.T) {
	t.Parallel()
	db := desk(t)
	m, sink := locker(t, db, lease.Options{})
	var all sync.WaitGroup
	for name, long := range map[string]func(ctx context.Context, tx pgsink.Tx) error{
		"statement": func(ctx context.Context, tx pgsink.Tx) error {
			_, err := tx.Exec(ctx, "select pg_sleep(40)")
			return err
		},
		"pause": func(context.Context, pgsink.Tx) error {
			<-time.After(40 * time.Second)
			return nil
		},
	} {
		all.Go(func() {
			tries := 0
			err := lease.Do(t.Context(), m, sink, name, func(ctx context.Context, tx pgsink.Tx, _ epoch.Epoch) error {
				tries++
				_, err := tx.Exec(ctx, "insert into report values ($1)", name)
				return errors.Join(err, long(ctx, tx))
			})
			if err != nil || tries != 1 {
				t.Errorf("%s: %d tries: %v", name, tries, err)
			}
		})
	}
	all.Wait()
}
