package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/kafkasource"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/pgtest"
	"github.com/epochfence/epochfence/operate"
	"github.com/epochfence/epochfence/outbox"
	"github.com/epochfence/epochfence/outbox/pgoutbox"
	"github.com/epochfence/epochfence/outbox/sqloutbox"
	"github.com/epochfence/epochfence/sinks/pgsink"
	"github.com/epochfence/epochfence/sinks/sqlsink"
)

// cli runs the program as an operator does, in this process.
type cli struct {
	t   *testing.T
	env map[string]string
}

type answer struct {
	code      int
	out, errs string
}

func (c *cli) run(args ...string) answer {
	c.t.Helper()
	var out, errs strings.Builder
	code := run(c.t.Context(), args, func(name string) string { return c.env[name] }, &out, &errs)
	return answer{code, out.String(), errs.String()}
}

// does is run, and wants the exit code.
func (c *cli) does(code int, args ...string) answer {
	c.t.Helper()
	a := c.run(args...)
	if a.code != code {
		c.t.Fatalf("epochfence %s: exit code %d, want %d\n%s%s", strings.Join(args, " "), a.code, code, a.out, a.errs)
	}
	return a
}

// reads is what a command prints as JSON.
func (c *cli) reads(into any, args ...string) {
	c.t.Helper()
	a := c.run(append(args, "--format", "json")...)
	if err := json.Unmarshal([]byte(a.out), into); err != nil {
		c.t.Fatalf("epochfence %s: %v\n%s%s", strings.Join(args, " "), err, a.out, a.errs)
	}
}

// executes carries out what writes.
func (c *cli) executes(args ...string) answer {
	c.t.Helper()
	return c.does(exitOK, append(args, "--execute", "--by", "anna", "--reason", "for the test")...)
}

// place is a sink's database and what consumers do with it.
type place struct {
	url     string
	op      operate.Operator
	alive   func(ctx context.Context, p operate.Process) error // a sign of life
	consume func(ctx context.Context, s consumer.Source, o consumer.Options) error
	applied func() []effect
	halts   bool                            // what fails halts its partition, and is no dead letter
	during  func(m consumer.Message)        // called by the handler
	posts   func(m consumer.Message) string // where the outbox sends a message to; empty: nowhere
}

// halting is p with a handler that has no place for dead letters.
func (p *place) halting() *place {
	p.halts = true
	return p
}

func (p *place) handles(m consumer.Message, fails broken) error {
	if p.during != nil {
		p.during(m)
	}
	if fails(m) {
		return consumer.Permanent(fmt.Errorf("%q is no order", m.Value))
	}
	return nil
}

// effect is a row of what a handler has written.
type effect struct {
	number int32
	offset epoch.Offset
	epoch  epoch.Epoch
}

// broken says of a message that its handler fails.
type broken func(m consumer.Message) bool

// onBoth runs a test on SQLite and on PostgreSQL.
func onBoth(t *testing.T, test func(t *testing.T, open func(broken) *place)) {
	t.Run("SQLite", func(t *testing.T) {
		t.Parallel()
		test(t, func(b broken) *place { return inSQLite(t, b) })
	})
	t.Run("PostgreSQL", func(t *testing.T) {
		t.Parallel()
		test(t, func(b broken) *place { return inPostgres(t, b) })
	})
}

func inSQLite(t *testing.T, fails broken) *place {
	t.Helper()
	p := &place{}
	path := filepath.Join(t.TempDir(), "sink.db")
	db, err := sql.Open("sqlite", "file:"+path+"?_pragma=journal_mode(wal)&_pragma=busy_timeout(10000)")
	must(t, err)
	t.Cleanup(func() { _ = db.Close() })
	must(t, sqlsink.Migrate(t.Context(), db, sqlsink.SQLite, sqlsink.Options{}))
	_, err = db.ExecContext(t.Context(), "CREATE TABLE applied (seq INTEGER PRIMARY KEY AUTOINCREMENT, number INTEGER, message_offset INTEGER, epoch INTEGER)")
	must(t, err)
	sink, err := sqlsink.Open(t.Context(), db, sqlsink.SQLite, sqlsink.Options{})
	must(t, err)
	op, err := sqlsink.OpenOperator(t.Context(), db, sqlsink.SQLite, sqlsink.Options{})
	must(t, err)
	must(t, sqloutbox.Migrate(t.Context(), db, sqloutbox.SQLite, sqloutbox.Options{}))
	store, err := sqloutbox.Open[*sqlsink.Tx](t.Context(), db, sqloutbox.SQLite, sqloutbox.Options{})
	must(t, err)
	box, err := outbox.New(store, slowly[*sqlsink.Tx]())
	must(t, err)
	handler := func(ctx context.Context, tx *sqlsink.Tx, m consumer.Message, e epoch.Epoch) error {
		if err := p.handles(m, fails); err != nil {
			return err
		}
		if err := post(ctx, p, box, tx, m); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, "INSERT INTO applied (number, message_offset, epoch) VALUES (?, ?, ?)", m.Partition.Number, m.Offset, e)
		return err
	}
	*p = place{
		url: "file:" + path, op: op, alive: sink.Alive,
		consume: func(ctx context.Context, s consumer.Source, o consumer.Options) error {
			return consume(ctx, p, s, sink, consumer.Each(handler), sink.DeadLetter, box, o)
		},
		applied: func() (as []effect) {
			rows, err := db.Query("SELECT number, message_offset, epoch FROM applied ORDER BY seq")
			must(t, err)
			defer func() { _ = rows.Close() }()
			for rows.Next() {
				var a effect
				must(t, rows.Scan(&a.number, &a.offset, &a.epoch))
				as = append(as, a)
			}
			must(t, rows.Err())
			return as
		},
	}
	return p
}

func inPostgres(t *testing.T, fails broken) *place {
	t.Helper()
	p := &place{}
	url := pgtest.Start(t).URL
	pool, err := pgxpool.New(t.Context(), url)
	must(t, err)
	t.Cleanup(pool.Close)
	must(t, pgsink.Migrate(t.Context(), pool, pgsink.Options{}))
	_, err = pool.Exec(t.Context(), "create table applied (seq bigint generated always as identity, number int, message_offset bigint, epoch bigint)")
	must(t, err)
	sink, err := pgsink.Open(t.Context(), pool, pgsink.Options{})
	must(t, err)
	op, err := pgsink.OpenOperator(t.Context(), pool, pgsink.Options{})
	must(t, err)
	must(t, pgoutbox.Migrate(t.Context(), pool, pgoutbox.Options{}))
	store, err := pgoutbox.Open[pgsink.Tx](t.Context(), pool, pgoutbox.Options{})
	must(t, err)
	box, err := outbox.New(store, slowly[pgsink.Tx]())
	must(t, err)
	handler := func(ctx context.Context, tx pgsink.Tx, m consumer.Message, e epoch.Epoch) error {
		if err := p.handles(m, fails); err != nil {
			return err
		}
		if err := post(ctx, p, box, tx, m); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, "insert into applied (number, message_offset, epoch) values ($1, $2, $3)", m.Partition.Number, int64(m.Offset), int64(e))
		return err
	}
	*p = place{
		url: url, op: op, alive: sink.Alive,
		consume: func(ctx context.Context, s consumer.Source, o consumer.Options) error {
			return consume(ctx, p, s, sink, consumer.Each(handler), sink.DeadLetter, box, o)
		},
		applied: func() (as []effect) {
			rows, err := pool.Query(context.Background(), "select number, message_offset, epoch from applied order by seq")
			must(t, err)
			defer rows.Close()
			for rows.Next() {
				var a effect
				must(t, rows.Scan(&a.number, &a.offset, &a.epoch))
				as = append(as, a)
			}
			must(t, rows.Err())
			return as
		},
	}
	return p
}

// consume is consumer.Run with what p has of handlers.
func consume[TX any](ctx context.Context, p *place, s consumer.Source, sink epoch.Sink[TX], h consumer.Handlers[TX],
	deadLetter func(context.Context, TX, epoch.Message, epoch.Epoch, error) error, box *outbox.Box[TX], o consumer.Options,
) error {
	if !p.halts {
		h = h.OnFailure(deadLetter)
	}
	if p.posts != nil {
		h = h.Background(box.Relay)
	}
	return consumer.Run(ctx, s, sink, h, o)
}

// slowly is an outbox that tries again what failed when the test is long over.
func slowly[TX any]() outbox.Options[TX] {
	return outbox.Options[TX]{RetryMin: 10 * time.Minute, RetryMax: 10 * time.Minute}
}

func post[TX any](ctx context.Context, p *place, box *outbox.Box[TX], tx TX, m consumer.Message) error {
	if p.posts == nil || p.posts(m) == "" {
		return nil
	}
	at := fmt.Sprintf("order/%d/%d", m.Partition.Number, m.Offset)
	return box.Add(ctx, tx, m, outbox.Entry{Key: at, Scope: at, IdempotencyKey: at, URL: p.posts(m), Header: http.Header{"Authorization": {"s3cret"}}, Body: m.Value})
}

// none fails nothing.
func none(consumer.Message) bool { return false }

// live is a group at work: Kafka with a topic that grows, and a consumer.
type live struct {
	*cli
	*place
	brokers  []string
	produced int // in each partition
	client   *kgo.Client
	stop     func()
}

const partitions = 2

// workers starts a broker and a producer, for processes that work on a place.
func workers(t *testing.T, p *place) *live {
	t.Helper()
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.GroupMinSessionTimeout(time.Second), kfake.SeedTopics(partitions, "orders"))
	must(t, err)
	t.Cleanup(cluster.Close)
	return workersOf(t, p, cluster.ListenAddrs()...)
}

// workersOf is workers with a broker that is there.
func workersOf(t *testing.T, p *place, brokers ...string) *live {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.DefaultProduceTopic("orders"))
	must(t, err)
	t.Cleanup(client.Close)
	return &live{
		cli:   &cli{t, map[string]string{"EPOCHFENCE_DATABASE": p.url, "EPOCHFENCE_KAFKA": strings.Join(brokers, ",")}},
		place: p, brokers: brokers, client: client,
	}
}

// atWork is workers with a consumer in this process.
func atWork(t *testing.T, p *place) *live {
	t.Helper()
	l := workers(t, p)
	l.produce(50)
	l.work()
	return l
}

// work starts a consumer in this process.
func (l *live) work(options ...kgo.Opt) {
	l.t.Helper()
	t, p := l.t, l.place
	source, err := kafkasource.New(kafkasource.Options{Group: "billing", Topics: []string{"orders"}, Client: append(options, kgo.SeedBrokers(l.brokers...))})
	must(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- p.consume(ctx, source, consumer.Options{MaxBatch: 4}) }()
	var over bool
	l.stop = func() {
		if !over {
			over = true
			cancel()
			if err := <-ended; err != nil && !errors.Is(err, context.Canceled) {
				t.Errorf("the consumer ended with %v", err)
			}
		}
	}
	t.Cleanup(l.stop)
}

// produce appends so many messages to each partition.
func (l *live) produce(n int) {
	l.t.Helper()
	var rs []*kgo.Record
	for range n {
		for number := range int32(partitions) {
			rs = append(rs, &kgo.Record{Partition: number, Value: []byte(fmt.Sprintf("order %d", l.produced))})
		}
		l.produced++
	}
	must(l.t, l.client.ProduceSync(l.t.Context(), rs...).FirstErr())
}

// poison appends a message that no handler takes.
func (l *live) poison(n int32) {
	l.t.Helper()
	must(l.t, l.client.ProduceSync(l.t.Context(), &kgo.Record{Partition: n, Value: []byte("poison")}).FirstErr())
}

// growing has the topic grow while do runs.
func (l *live) growing(do func()) {
	l.t.Helper()
	done := make(chan struct{})
	ended := make(chan error, 1)
	go func() {
		for n := 0; ; n++ {
			select {
			case <-done:
				l.produced += n
				ended <- nil
				return
			default:
			}
			for number := range int32(partitions) {
				r := &kgo.Record{Partition: number, Value: []byte("order")}
				if err := l.client.ProduceSync(context.Background(), r).FirstErr(); err != nil {
					ended <- err
					return
				}
			}
		}
	}()
	do()
	close(done)
	must(l.t, <-ended)
}

func partition(n int32) epoch.Partition {
	return epoch.Partition{Group: "billing", Topic: "orders", Number: n}
}

func (l *live) at(n int32) operate.Partition {
	l.t.Helper()
	p, err := l.op.Partition(l.t.Context(), partition(n))
	must(l.t, err)
	return p
}

// known reports whether there is a fence.
func (l *live) known(n int32) bool {
	_, err := l.op.Partition(l.t.Context(), partition(n))
	return err == nil
}

func (l *live) log(q operate.HistoryQuery) []operate.Decision {
	l.t.Helper()
	ds, err := l.op.History(l.t.Context(), q)
	must(l.t, err)
	return ds
}

// awaits waits until cond holds.
func (l *live) awaits(what string, cond func() bool) {
	l.t.Helper()
	late := time.After(60 * time.Second)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !cond() {
		select {
		case <-tick.C:
		case <-late:
			l.t.Fatalf("waited for a minute until %s\n%s", what, l.run("describe").out)
		}
	}
}

// through waits until everything is applied.
func (l *live) through() {
	l.t.Helper()
	l.awaits("all is applied", func() bool {
		ps, err := l.op.Partitions(l.t.Context(), operate.Filter{Group: "billing"})
		must(l.t, err)
		return len(ps) == partitions && !slices.ContainsFunc(ps, func(p operate.Partition) bool { return int(p.Next) != l.produced })
	})
}

// audit stops the consumer, and compares what was applied with the audit log: under each
// claim exactly the messages from its position up to that of the claim after it, in
// order, but for what failed.
func (l *live) audit(fails broken) {
	l.t.Helper()
	l.stop()
	ds, err := l.op.History(l.t.Context(), operate.HistoryQuery{Limit: 100_000})
	must(l.t, err)
	slices.Reverse(ds)
	rows := l.applied()
	for n := range int32(partitions) {
		var got, want []effect
		for _, r := range rows {
			if r.number == n {
				got = append(got, r)
			}
		}
		var swaps []operate.Decision
		for _, d := range ds {
			if d.Partition == partition(n) && d.Kind.ReplacesClaim() {
				swaps = append(swaps, d)
			}
		}
		for i, d := range swaps {
			end := l.at(n).Next
			if i+1 < len(swaps) {
				end = swaps[i+1].From
			}
			for o := d.To; o < end; o++ {
				if !fails(consumer.Message{Partition: partition(n), Offset: o}) {
					want = append(want, effect{n, o, d.Epoch})
				}
			}
		}
		if !slices.Equal(got, want) {
			l.t.Errorf("partition %d: applied\n%v\nand the audit log says\n%v", n, got, want)
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// normal is output without what differs from run to run.
func normal(s string) string {
	for _, r := range []struct {
		pattern *regexp.Regexp
		by      string
	}{
		{regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`), "00000000-0000-4000-8000-00000000cafe"},
		{regexp.MustCompile(`\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}\.\d{3}Z`), "2026-01-02T03:04:05.678Z"},
		{regexp.MustCompile(`\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(\.\d+)?Z`), "2026-01-02T03:04:05Z"},
		{regexp.MustCompile(`--plan=[0-9a-f]{12}`), "--plan=0123456789ab"},
		{regexp.MustCompile(`"plan": "[0-9a-f]{12}"`), `"plan": "0123456789ab"`},
		{regexp.MustCompile(`[ \d]\ds([ \n)])`), " 0s$1"},
		{regexp.MustCompile(`seen \d+s ago`), "seen 0s ago"},
		{regexp.MustCompile(`seen for \d+s`), "seen for 0s"},
		{regexp.MustCompile(`SQLite 3\.[\d.]+`), "SQLite 3.0.0"},
		{regexp.MustCompile(`kafka:golden/[\w-]{22}`), "kafka:golden/AAAAAAAAAAAAAAAAAAAAAA"},
	} {
		s = r.pattern.ReplaceAllString(s, r.by)
	}
	return s
}

func tells(t *testing.T, story string, parts ...string) {
	t.Helper()
	for _, p := range parts {
		if !strings.Contains(story, p) {
			t.Errorf("it does not say %q:\n%s", p, story)
		}
	}
}
