package e2e_test

import (
	"context"
	"fmt"
	"math"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/memsource"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/servers/pgtest"
	"github.com/epochfence/epochfence/sinks/pgsink"
)

// counting is a tracer of pgx's that counts round trips and statements.
type counting struct{ *tally }

func (c counting) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	c.add("round trips", 1)
	c.add("statements", 1)
	return ctx
}

func (counting) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func (c counting) TraceBatchStart(ctx context.Context, _ *pgx.Conn, b pgx.TraceBatchStartData) context.Context {
	c.add("round trips", 1)
	c.add("statements", b.Batch.Len())
	return ctx
}

func (counting) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}
func (counting) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData)     {}

// teammate is a member of a group with a pool of its own.
type teammate struct {
	stop  context.CancelFunc
	ended chan struct{}
}

// team is the members of a group, and which of them has claimed which partition.
type team struct {
	testing.TB
	url      string
	log      *memsource.Log
	counts   tally
	everyone []*teammate

	mu      sync.Mutex
	holders map[epoch.Partition]*teammate
	held    map[*teammate]int // how many of them
	doubts  int
	changed chan struct{}
}

func (m *team) join() *teammate {
	m.Helper()
	config, err := pgxpool.ParseConfig(m.url)
	if err != nil {
		m.Fatal(err)
	}
	config.MaxConns = 4
	config.ConnConfig.Tracer = counting{&m.counts}
	ctx, stop := context.WithCancel(context.Background())
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		m.Fatal(err)
	}
	sink, err := pgsink.Open(ctx, pool, pgsink.Options{})
	if err != nil {
		m.Fatal(err)
	}
	p := &teammate{stop: stop, ended: make(chan struct{})}
	member := m.log.Member(fmt.Sprint("process ", len(m.everyone)))
	m.everyone = append(m.everyone, p)
	handle := func(context.Context, pgsink.Tx, []consumer.Message, epoch.Epoch) error { return nil }
	go func() {
		defer close(p.ended)
		defer pool.Close()
		if err := consumer.Run(ctx, member, sink, consumer.Batches(handle), consumer.Options{
			Logger: quiet(), Observe: func(e consumer.Event) { m.observe(p, e) },
		}); err != nil {
			m.Errorf("Run: %v", err)
		}
	}()
	m.Cleanup(func() { stop(); <-p.ended })
	return p
}

func (m *team) observe(p *teammate, e consumer.Event) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch e := e.(type) {
	case consumer.Claimed:
		m.counts.add("claims", 1)
		if old := m.holders[e.Fence.Partition]; old != nil {
			m.held[old]--
		}
		m.holders[e.Fence.Partition] = p
		m.held[p]++
	case consumer.InDoubt: // a transaction that took longer than half of the term
		m.doubts++
	case consumer.Advanced:
		m.counts.add("positions", 1)
	}
	close(m.changed)
	m.changed = make(chan struct{})
}

// until waits until it holds, which is asked under the lock.
func (m *team) until(what string, holds func() bool) {
	m.Helper()
	limit := time.After(5 * time.Minute)
	for {
		m.mu.Lock()
		is, changed := holds(), m.changed
		m.mu.Unlock()
		if is {
			return
		}
		select {
		case <-changed:
		case <-limit:
			m.Fatalf("5 minutes have passed before %s", what)
		}
	}
}

// TestScalePostgres counts what a group asks of its database, as it starts, is idle, is
// restarted process by process, and moves each position once a term; and how its table looks then.
// The source costs nothing, so that the database is what there is to see.
func TestScalePostgres(t *testing.T) {
	t.Parallel()
	partitions, members := *scalePartitions, *scaleMembers
	db := pgtest.StartServer(t, pgtest.Options{NoFsync: true}).Database(t)
	d := postgresOn(t, db).granted()
	log := memsource.NewBroker().Create(topic, int32(partitions))
	term := *scaleTerm // shorter than a real one, so that its looks are seen sooner
	log.Group(memsource.DefaultGroup).SetTerm(term)
	m := &team{TB: t, url: d.url, log: log, holders: map[epoch.Partition]*teammate{}, held: map[*teammate]int{}, changed: make(chan struct{})}
	p, n := float64(partitions), float64(members)
	title := fmt.Sprintf("%d partitions, %d members", partitions, members)

	began := time.Now()
	m.join()
	m.until("all partitions were claimed", func() bool { return len(m.holders) == partitions })
	took := time.Since(began)
	holds(t, fmt.Sprintf("%s: the first member claims all of them, in %v (%.0f a second)", title, took.Round(time.Millisecond), p/took.Seconds()), m.counts.take(), 0,
		expectation{"claims", p, "P"})
	began = time.Now()
	for range members - 1 {
		q := m.join()
		m.until("a member that joined has its share", func() bool { return m.held[q] >= partitions/len(m.everyone) })
	}
	holds(t, fmt.Sprintf("%s: the others join one after the other, in %v", title, time.Since(began).Round(time.Millisecond)), m.counts.take(), 0)

	since := time.Now()
	<-time.After(5 * term)
	idle := time.Since(since)
	looks := n / (term / 2).Seconds() // a third of the term, and up to as much again
	polls, signs := looks*math.Ceil(p/n/1000)+n/2.5, n/15
	holds(t, title+": a second while nobody produces", m.counts.take(), idle,
		expectation{"claims", 0, "none"},
		expectation{"round trips", polls + signs, "N / (Term/2) for each 1,000 partitions of a member + N / 2.5 s + N / 15 s"},
		expectation{"statements", 2*polls + 3*signs, "two in each, and three in the last"})

	began = time.Now()
	for _, old := range m.everyone[:members] {
		old.stop()
		<-old.ended
		m.until("those of a member that was stopped have been claimed", func() bool { return m.held[old] == 0 })
		q := m.join()
		m.until("a member that joined has its share", func() bool { return m.held[q] >= partitions/members })
	}
	holds(t, fmt.Sprintf("%s: all members are restarted one by one, in %v", title, time.Since(began).Round(time.Millisecond)), m.counts.take(), 0,
		expectation{"claims", 2 * p, "2P: to the others, and to the one that comes"})

	m.mu.Lock()
	m.doubts = 0
	m.mu.Unlock()
	const rounds, steps = 4, 50
	tick := time.NewTicker(term / steps)
	defer tick.Stop()
	began = time.Now()
	for step := range rounds * steps {
		<-tick.C
		for i := step % steps; i < partitions; i += steps {
			log.Append(int32(i), "x")
		}
	}
	m.until("all is applied", func() bool { // also what a transaction in doubt has applied, which no event counts
		var applied int
		if err := d.admin.QueryRow(t.Context(), "select sum(next_offset) from epochfence.fence").Scan(&applied); err != nil {
			t.Error(err)
		}
		return applied == rounds*partitions
	})
	loaded := time.Since(began)
	counts := m.counts.take()
	m.mu.Lock()
	doubts := float64(m.doubts)
	m.mu.Unlock()
	holds(t, title+": a second while each partition gets a message every "+term.String(), counts, loaded,
		expectation{"claims", doubts / loaded.Seconds(), "none, but where a transaction was in doubt"},
		expectation{"positions", p / term.Seconds(), "messages a second, or fewer"})

	var connections int
	if err := d.admin.QueryRow(t.Context(), "select count(*) from pg_stat_activity where usename = $1", d.role).Scan(&connections); err != nil {
		t.Fatal(err)
	}
	for _, q := range m.everyone {
		q.stop()
		<-q.ended // which has their backends report what they did
	}
	var rows, dead, updates, hot, bytes, vacuums int64
	const stats = `select (select count(*) from epochfence.fence), n_dead_tup, n_tup_upd, n_tup_hot_upd, pg_total_relation_size(relid), autovacuum_count
		from pg_stat_user_tables where schemaname = 'epochfence' and relname = 'fence'`
	if err := d.admin.QueryRow(t.Context(), stats).Scan(&rows, &dead, &updates, &hot, &bytes, &vacuums); err != nil {
		t.Fatal(err)
	}
	t.Logf("%s: %d connections; the table of fences has %d rows in %d kB with its index (%.0f bytes each), %d dead versions after %d updates, %d of which stayed on their page (%.0f %%), and %d autovacuums",
		title, connections, rows, bytes/1024, float64(bytes)/float64(rows), dead, updates, hot, 100*float64(hot)/float64(updates), vacuums)
	if rows != int64(partitions) {
		t.Errorf("the table of fences has %d rows, want %d", rows, partitions)
	}
}
