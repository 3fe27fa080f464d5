package e2e_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/memsource"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/servers/pgtest"
	"github.com/epochfence/epochfence/sinks/pgsink"
)

var (
	contentionRounds = flag.Int("contention.rounds", 0, "rounds of each comparison in TestContentionIsNeverSlowerThanOneMessageAtATime; zero skips it, make long WHAT=contention has 5")
	contentionTime   = flag.Duration("contention.time", 3*time.Second, "how long each side has in a round")
)

// hotRows are what all messages update.
const hotRows = 10

// contention is one comparison: processes that update the same ten rows, each
// message some of them, in an order of its own.
type contention struct {
	processes int
	rows      int // that a message updates
	zipf      bool
}

func (c contention) String() string {
	dist := "uniform"
	if c.zipf {
		dist = "zipf"
	}
	return fmt.Sprintf("processes=%d/rows=%d/%s", c.processes, c.rows, dist)
}

// TestContentionIsNeverSlowerThanOneMessageAtATime compares consumer.Run on
// PostgreSQL with a loop without a fence that applies one message in each
// transaction, and tries again what the database refuses. `make long WHAT=contention` runs it.
func TestContentionIsNeverSlowerThanOneMessageAtATime(t *testing.T) {
	if *contentionRounds <= 0 {
		t.Skip("takes minutes, and a machine that does nothing else; run by make long WHAT=contention")
	}
	t.Logf("%-28s %10s %10s %8s", "", "unfenced", "consumer", "ratio")
	for _, processes := range []int{2, 4} {
		for _, rows := range []int{1, 3} {
			for _, zipf := range []bool{false, true} {
				c := contention{processes, rows, zipf}
				t.Run(c.String(), func(t *testing.T) {
					unfenced, fenced, ratio := c.compare(t)
					t.Logf("%-28s %8.0f/s %8.0f/s %8.2f", "", unfenced, fenced, ratio)
					if ratio < 0.9 {
						t.Errorf("the median of the ratios is %.2f; want 0.9 at least", ratio)
					}
				})
			}
		}
	}
}

// compare returns the medians of the messages per second on both sides, and of
// the ratios within a round.
func (c contention) compare(t *testing.T) (unfenced, fenced, ratio float64) {
	db := pgtest.StartServer(t, pgtest.Options{}).Database(t)
	d := postgresOn(t, db)
	d.exec("create table stock (id int primary key, n bigint not null)")
	d.exec(fmt.Sprintf("insert into stock select i, 0 from generate_series(0, %d) i", hotRows-1))
	d.exec("grant select, update on stock to " + d.role)
	d.granted()
	var us, fs, ratios []float64
	for round := range *contentionRounds {
		var u, f float64
		sides := []func(){
			func() { u = c.unfenced(t, d.url, round) },
			func() { f = c.fenced(t, d.url, round) },
		}
		if round%2 == 1 {
			slices.Reverse(sides)
		}
		for _, side := range sides {
			side()
		}
		us, fs, ratios = append(us, u), append(fs, f), append(ratios, f/u)
	}
	return median(us), median(fs), median(ratios)
}

func median(vs []float64) float64 {
	vs = slices.Sorted(slices.Values(vs))
	return vs[len(vs)/2]
}

// message is which rows one updates, in order.
func (c contention) message(rng *rand.Rand, zipf *rand.Zipf) string {
	var rows []string
	for len(rows) < c.rows {
		id := rng.IntN(hotRows)
		if c.zipf {
			id = int(zipf.Uint64())
		}
		if row := strconv.Itoa(id); !slices.Contains(rows, row) {
			rows = append(rows, row)
		}
	}
	return strings.Join(rows, " ")
}

func (c contention) messages(process, round, count int) []string {
	rng := rand.New(rand.NewPCG(uint64(process), uint64(round)))
	zipf := rand.NewZipf(rng, 1.1, 1, hotRows-1)
	ms := make([]string, count)
	for i := range ms {
		ms[i] = c.message(rng, zipf)
	}
	return ms
}

type execer interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}

func update(ctx context.Context, tx execer, rows string) error {
	for row := range strings.FieldsSeq(rows) {
		id, err := strconv.Atoi(row)
		if err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, "update stock set n = n + 1 where id = $1", id); err != nil {
			return err
		}
	}
	return nil
}

// unfenced is the least that a consumer does.
func (c contention) unfenced(t *testing.T, url string, round int) float64 {
	ctx, cancel := context.WithTimeout(t.Context(), *contentionTime)
	defer cancel()
	var applied atomic.Int64
	var running sync.WaitGroup
	began := time.Now()
	for p := range c.processes {
		ms, pool := c.messages(p, round, 20_000), newPool(t, url)
		defer pool.Close()
		running.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				for !c.alone(ctx, pool, ms[i%len(ms)]) && ctx.Err() == nil {
				}
				if ctx.Err() == nil {
					applied.Add(1)
				}
			}
		})
	}
	running.Wait()
	return float64(applied.Load()) / time.Since(began).Seconds()
}

// alone applies one message, and reports whether it did.
func (contention) alone(ctx context.Context, pool *pgxpool.Pool, rows string) bool {
	tx, err := pool.Begin(ctx)
	if err != nil {
		return false
	}
	if update(ctx, tx, rows) != nil {
		_ = tx.Rollback(context.Background())
		return false
	}
	return tx.Commit(ctx) == nil
}

// fenced is consumer.Run with its zero options, one for each process.
func (c contention) fenced(t *testing.T, url string, round int) float64 {
	const partitions = 4
	ctx, cancel := context.WithTimeout(t.Context(), *contentionTime)
	defer cancel()
	var applied, transactions, shared, retried atomic.Int64
	var running sync.WaitGroup
	began := time.Now()
	for p := range c.processes {
		log := memsource.New(fmt.Sprintf("%s %d %d", t.Name(), round, p), partitions)
		ms := c.messages(p, round, 200_000)
		for n := range partitions {
			log.Append(int32(n), ms[n*len(ms)/partitions:(n+1)*len(ms)/partitions]...)
		}
		pool := newPool(t, url)
		defer pool.Close()
		sink, err := pgsink.Open(t.Context(), pool, pgsink.Options{})
		if err != nil {
			t.Fatal(err)
		}
		handle := func(ctx context.Context, tx pgsink.Tx, m consumer.Message, _ epoch.Epoch) error {
			return update(ctx, tx, string(m.Value))
		}
		observe := func(e consumer.Event) {
			switch e := e.(type) {
			case consumer.Advanced:
				applied.Add(int64(e.Messages))
				transactions.Add(1)
				if e.Messages > 1 {
					shared.Add(1)
				}
			case consumer.Retried:
				retried.Add(1)
			case consumer.Halted:
				t.Errorf("halted: %v", e.Err)
			}
		}
		running.Go(func() {
			err := consumer.Run(ctx, log.Member("a"), sink, consumer.Each(handle), consumer.Options{
				Observe: observe, Logger: slog.New(slog.DiscardHandler),
			})
			if err != nil && !errors.Is(err, context.DeadlineExceeded) {
				t.Error(err)
			}
		})
	}
	<-ctx.Done()
	n, took := applied.Load(), time.Since(began)
	running.Wait()
	t.Logf("round %d: %.0f/s, %d advances of which %d of several messages, %d retries", round, float64(n)/took.Seconds(), transactions.Load(), shared.Load(), retried.Load())
	return float64(n) / took.Seconds()
}
