package river

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/kafkasource"
	"github.com/epochfence/epochfence/consumer/memsource"
	"github.com/epochfence/epochfence/internal/servers/pgtest"
	"github.com/epochfence/epochfence/internal/show"
	"github.com/epochfence/epochfence/sinks/pgsink"
)

const (
	topic      = "orders"
	partitions = 4
	session    = 2 * time.Second
)

// The workers are this test binary.
func TestMain(m *testing.M) {
	show.Enter(work)
	os.Exit(m.Run())
}

// config is what a worker is told.
type config struct {
	Brokers  []string
	Database string
	Name     string
}

// work is a worker process.
func work(ctx context.Context, stage *show.Stage) error {
	var c config
	if err := stage.Config(&c); err != nil {
		return err
	}
	pool, err := pgxpool.New(ctx, c.Database)
	if err != nil {
		return err
	}
	defer pool.Close()
	client, err := river.NewClient(riverpgxv5.New(pool), &river.Config{}) // which works no jobs, and so needs no Start
	if err != nil {
		return err
	}
	source, err := kafkasource.New(kafkasource.Options{Group: "shipping", Topics: []string{topic}, Client: []kgo.Opt{
		kgo.SeedBrokers(c.Brokers...), kgo.ClientID(c.Name),
		kgo.SessionTimeout(session), kgo.HeartbeatInterval(session / 6), kgo.RebalanceTimeout(5 * session / 2),
	}})
	if err != nil {
		return err
	}
	sink, err := pgsink.Open(ctx, pool, pgsink.Options{})
	if err != nil {
		return err
	}
	return consumer.Run(ctx, source, show.Fenced(sink, stage), consumer.Each(Enqueue(client)), consumer.Options{Observe: stage.Stats.Observe})
}

// orders is the side of the show: messages, and the jobs that are there in the end.
type orders struct {
	*show.Load
	column *show.Column
	config func(worker string) any
	kafka  *kgo.Client
	pool   *pgxpool.Pool
	total  int

	mu      sync.Mutex
	at      map[string]string // the order of each message
	shipped shipped
}

func (*orders) Prepare(context.Context) error { return nil }
func (o *orders) Config(worker string) any    { return o.config(worker) }
func (o *orders) Play(ctx context.Context) error {
	return o.Load.Play(ctx, o.column, o.send, o.applied)
}

// send produces an order after the other.
func (o *orders) send(ctx context.Context, from, to int) error {
	for i := from; i < to; i++ {
		order := strconv.Itoa(i)
		r, err := o.kafka.ProduceSync(ctx, &kgo.Record{Topic: topic, Key: []byte(order), Value: []byte(order)}).First()
		if err != nil {
			return err
		}
		o.mu.Lock()
		o.at[show.Subject(r.Partition, r.Offset)] = order
		o.mu.Unlock()
	}
	return nil
}

func (o *orders) applied(ctx context.Context) (n int, err error) {
	err = o.pool.QueryRow(ctx, `SELECT count(DISTINCT args->>'order') FROM river_job WHERE kind = 'ship'`).Scan(&n)
	return n, err
}

// Elsewhere does not know who has made a job, but a worker that waits to make one has not.
func (o *orders) Elsewhere(ctx context.Context, subject string, _ show.Point, _ string) (done bool, err error) {
	o.mu.Lock()
	order := o.at[subject]
	o.mu.Unlock()
	err = o.pool.QueryRow(ctx, `SELECT EXISTS (SELECT FROM river_job WHERE args->>'order' = $1)`, order).Scan(&done)
	return done, err
}

// Judge looks at River's table, and at what its worker did.
func (o *orders) Judge(ctx context.Context) (exact bool, _ []show.Row, err error) {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		var jobs, orders, completed int
		err := o.pool.QueryRow(ctx, `SELECT count(*), count(DISTINCT args->>'order'), count(*) FILTER (WHERE state = 'completed') FROM river_job WHERE kind = 'ship'`).
			Scan(&jobs, &orders, &completed)
		switch {
		case err != nil:
			return false, nil, err
		case jobs != o.total || orders != o.total:
			return false, nil, fmt.Errorf("%d jobs for %d orders, want %d for as many", jobs, orders, o.total)
		case completed == jobs:
			return o.shipped.each(o.total), nil, nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return false, nil, ctx.Err()
		}
	}
}

func (*orders) Close() error { return nil }

// shipped is what River's worker did.
type shipped struct {
	river.WorkerDefaults[ShipArgs]
	mu     sync.Mutex
	orders map[string]int
}

func (s *shipped) Work(_ context.Context, job *river.Job[ShipArgs]) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.orders[job.Args.Order]++
	return nil
}

// each reports whether each of n orders was shipped once.
func (s *shipped) each(n int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range n {
		if s.orders[strconv.Itoa(i)] != 1 {
			return false
		}
	}
	return len(s.orders) == n
}

func TestEachMessageHasOneRiverJobThroughFreezesAndKills(t *testing.T) {
	db := pgtest.Start(t)
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	s := &show.Load{
		Settings: show.Settings{Worker: "worker", Workers: 3, Dir: t.TempDir()},
		Messages: 2000, Duration: 6 * time.Second, Every: 2 * time.Second, Seed: 7,
		Freezes: []show.Point{show.AfterWrites, show.InHand}, Kills: []show.Point{show.AfterCommit},
	}
	o := &orders{Load: s, total: s.Messages, at: map[string]string{}, shipped: shipped{orders: map[string]int{}}}

	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.GroupMinSessionTimeout(session))
	if err != nil {
		t.Fatal(err)
	}
	defer cluster.Close()
	if o.kafka, err = kgo.NewClient(kgo.SeedBrokers(cluster.ListenAddrs()...)); err != nil {
		t.Fatal(err)
	}
	defer o.kafka.Close()
	if _, err := kadm.NewClient(o.kafka).CreateTopic(ctx, partitions, 1, nil, topic); err != nil {
		t.Fatal(err)
	}

	if o.pool, err = pgxpool.New(ctx, db.URL); err != nil {
		t.Fatal(err)
	}
	defer o.pool.Close()
	if err := pgsink.Migrate(ctx, o.pool, pgsink.Options{}); err != nil {
		t.Fatal(err)
	}
	stop := startRiver(ctx, t, o.pool, &o.shipped)
	defer stop()

	o.config = func(worker string) any {
		return config{Brokers: cluster.ListenAddrs(), Database: db.URL, Name: worker}
	}
	var out bytes.Buffer
	column := &show.Column{Name: show.Fence, ID: "river", Side: o}
	o.column = column
	s.Stage(ctx, show.NewBoard(&out), []*show.Column{column})
	t.Log(out.String())
	if column.Err != nil || !column.Exact {
		t.Errorf("exact: %v; %v", column.Exact, column.Err)
	}
	if !strings.Contains(out.String(), "taken over in") {
		t.Error("no partition was taken over")
	}
}

// startRiver makes River's tables and starts a client that works the jobs.
func startRiver(ctx context.Context, t *testing.T, pool *pgxpool.Pool, w *shipped) (stop func()) {
	t.Helper()
	driver := riverpgxv5.New(pool)
	migrator, err := rivermigrate.New[pgx.Tx](driver, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := migrator.Migrate(ctx, rivermigrate.DirectionUp, nil); err != nil {
		t.Fatal(err)
	}
	workers := river.NewWorkers()
	river.AddWorker(workers, w)
	client, err := river.NewClient(driver, &river.Config{
		Queues: map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 10}}, Workers: workers, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := client.Start(ctx); err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := client.Stop(context.WithoutCancel(ctx)); err != nil {
			t.Error(err)
		}
	}
}

// TestAJobIsEnqueuedInEachQueryMode: River sends JSON otherwise where pgx does not ask the
// server what a parameter is, and asks the transaction for the mode.
func TestAJobIsEnqueuedInEachQueryMode(t *testing.T) {
	db := pgtest.Start(t)
	for _, mode := range []pgx.QueryExecMode{
		pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec, pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol,
	} {
		config, err := pgxpool.ParseConfig(db.URL)
		if err != nil {
			t.Fatal(err)
		}
		config.ConnConfig.DefaultQueryExecMode = mode
		pool, err := pgxpool.NewWithConfig(t.Context(), config)
		if err != nil {
			t.Fatal(err)
		}
		defer pool.Close()
		if err := pgsink.Migrate(t.Context(), pool, pgsink.Options{}); err != nil {
			t.Fatal(err)
		}
		driver := riverpgxv5.New(pool)
		migrator, err := rivermigrate.New(driver, nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := migrator.Migrate(t.Context(), rivermigrate.DirectionUp, nil); err != nil {
			t.Fatal(err)
		}
		client, err := river.NewClient(driver, &river.Config{Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		sink, err := pgsink.Open(t.Context(), pool, pgsink.Options{})
		if err != nil {
			t.Fatal(err)
		}
		log := memsource.New(fmt.Sprint(topic, int(mode)), 1)
		log.Send("", mode.String())
		ctx, stop := context.WithTimeout(t.Context(), time.Minute)
		var failed error
		err = consumer.Run(ctx, log.Group("shipping").Member("a"), sink, consumer.Each(Enqueue(client)), consumer.Options{
			Logger: slog.New(slog.DiscardHandler),
			Observe: func(e consumer.Event) {
				switch e := e.(type) {
				case consumer.Advanced:
					stop()
				case consumer.Halted:
					failed = e.Err
					stop()
				}
			},
		})
		stop()
		var jobs int
		if err := errors.Join(failed, err, pool.QueryRow(t.Context(), `SELECT count(*) FROM river_job WHERE args->>'order' = $1`, mode.String()).Scan(&jobs)); err != nil || jobs != 1 {
			t.Errorf("%v: %d jobs, %v", mode, jobs, err)
		}
	}
}
