package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/epochfence/epochfence/internal/servers/kafkatest"
	"github.com/epochfence/epochfence/internal/servers/pgtest"
	"github.com/epochfence/epochfence/internal/servers/subprocess"
	"github.com/epochfence/epochfence/operate"
	"github.com/epochfence/epochfence/sinks/pgsink"
)

// Old consumers with a dedupe table are killed (SIGKILL) one by one, under load, and replaced.
// The last one dies with effects that it has not committed, as a look at it while it is stopped
// (SIGSTOP) makes sure. Who asks the command before the handlers go without the table doubles
// nothing, whoever else is killed; who does not doubles these effects.
func TestRealProcessesAreMovedOver(t *testing.T) {
	broker := kafkatest.Start(t, kafkatest.Config{})
	t.Run("by the guide nothing is doubled", func(t *testing.T) {
		t.Parallel()
		m := newMove(t, broker.Addr, oldShipper)
		m.replaceOld()
		m.wantNo("when the last old one is gone")
		held := m.pauseOne()
		m.kill(m.new[0])
		m.starts(beside)
		m.wantEventually("with a partition that is paused", func(a answer) bool {
			return a.code == exitTrouble && strings.Contains(a.out, held) && !strings.Contains(a.out, "member")
		})
		m.executes("resume", held)
		for range 2 {
			m.kill(m.new[rand.IntN(len(m.new))])
			m.starts(beside)
			m.more(300)
		}
		m.wantEventually("after all are through", func(a answer) bool { return a.code == exitOK })
		m.goAlone()
		_, err := m.pool.Exec(t.Context(), "drop table seen")
		must(t, err)
		m.kill(m.new[rand.IntN(len(m.new))])
		m.starts(alone)
		m.drain()
		if n := m.doubled(); n > 0 {
			t.Errorf("%d effects are doubled", n)
		}
	})
	t.Run("who drops the table at once doubles", func(t *testing.T) {
		t.Parallel()
		for range 3 { // the new ones may have passed these effects before they are replaced
			m := newMove(t, broker.Addr, oldShipper)
			m.replaceOld()
			m.wantNo("when the last old one is gone")
			m.goAlone()
			m.drain()
			if m.doubled() > 0 {
				return
			}
			for len(m.new) > 0 {
				m.kill(m.new[0])
			}
		}
		t.Error("no effect is doubled: this test would not notice a command that always says yes")
	})
}

// Apache Kafka tells of the members of a classic group and of one of KIP-848 in different ways.
func TestRealMembersOfAGroupAreTold(t *testing.T) {
	broker := kafkatest.Start(t, kafkatest.Config{})
	for name, options := range map[string][]kgo.Opt{
		"classic": nil,
		"KIP-848": {kgo.WithContext(context.WithValue(context.Background(), optIn, true))},
	} {
		t.Run(name, func(t *testing.T) {
			l := workersOf(t, inSQLite(t, none), broker.Addr)
			admin := kadm.NewClient(l.client)
			_, err := admin.CreateTopic(t.Context(), partitions, 1, nil, "orders")
			must(t, err)
			l.produce(5)
			leave := l.old(options...)
			k, err := openKafka(flags{kafka: broker.Addr, timeout: inTime})
			must(t, err)
			t.Cleanup(k.close)
			l.awaits("the old consumer is told of", func() bool {
				g, err := k.groupOf(t.Context(), "billing")
				must(t, err)
				return len(g.members) == 1 && len(g.members[0].Partitions) == partitions
			})
			leave()
			l.work(options...)
			l.through()
			l.does(exitOK, "moveover", "--old-ended")
			l.stop()
			l.awaits("nobody is left", func() bool {
				_, err := admin.DeleteGroup(t.Context(), "billing")
				return err == nil
			})
			l.does(exitOK, "moveover", "--old-ended") // a group that is not there has no members
			_, err = admin.DeleteTopic(t.Context(), "orders")
			must(t, err)
			l.awaits("the topic is gone", func() bool {
				topics, err := admin.ListTopics(t.Context())
				must(t, err)
				return !topics.Has("orders")
			})
		})
	}
}

// moving is a group that is moved over, beside others on one broker.
type moving struct {
	*cli
	pool     *pgxpool.Pool
	op       operate.Operator
	client   *kgo.Client
	topic    string
	old, new []*worker
	started  int
	sent     atomic.Int64
	stopLoad func()
}

func newMove(t *testing.T, addr, kind string) *moving {
	t.Helper()
	url := pgtest.Start(t).URL
	pool, err := pgxpool.New(t.Context(), url)
	must(t, err)
	t.Cleanup(pool.Close)
	must(t, pgsink.Migrate(t.Context(), pool, pgsink.Options{}))
	_, err = pool.Exec(t.Context(), `create table seen (id text primary key, at timestamptz not null default now());
		create table shipment (id bigint generated always as identity primary key, order_id text not null, number int not null, message_offset bigint not null, worker text not null);
		create table delivery (id bigint generated always as identity primary key, order_id text not null, number int not null, message_offset bigint not null, worker text not null,
			tx xid8 not null default pg_current_xact_id(), thawed boolean not null default false);
		create index on delivery (number, message_offset);
		create index on delivery (tx);
		create table to_freeze (place text primary key);
		create table frozen (n int generated always as identity, place text, worker text, thawed boolean not null default false)`)
	must(t, err)
	op, err := pgsink.OpenOperator(t.Context(), pool, pgsink.Options{})
	must(t, err)
	m := &moving{cli: &cli{t, map[string]string{"EPOCHFENCE_DATABASE": url, "EPOCHFENCE_KAFKA": addr}}, pool: pool, op: op, topic: fmt.Sprint("orders-", time.Now().UnixNano())}
	m.client, err = kgo.NewClient(kgo.SeedBrokers(addr), kgo.DefaultProduceTopic(m.topic))
	must(t, err)
	t.Cleanup(m.client.Close)
	_, err = kadm.NewClient(m.client).CreateTopic(t.Context(), 6, 1, nil, m.topic)
	must(t, err)
	m.load()
	for range 3 {
		m.old = append(m.old, m.start(kind))
	}
	m.more(300)
	return m
}

// load sends messages until stopLoad is called: more than there is time for at first, so that old consumers are always at work.
func (m *moving) load() {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	send := func(n int) error {
		var rs []*kgo.Record
		for range n {
			order := fmt.Sprint("order-", m.sent.Add(1))
			rs = append(rs, &kgo.Record{Key: []byte(order), Value: []byte(order)})
		}
		return m.client.ProduceSync(context.Background(), rs...).FirstErr()
	}
	must(m.t, send(3000))
	go func() {
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				ended <- nil
				return
			case <-tick.C:
			}
			if err := send(8); err != nil {
				ended <- err
				return
			}
		}
	}()
	m.stopLoad = sync.OnceFunc(func() {
		cancel()
		must(m.t, <-ended)
	})
	m.t.Cleanup(m.stopLoad)
}

// start starts a process of a kind.
func (m *moving) start(kind string) *worker {
	m.t.Helper()
	self, err := os.Executable()
	must(m.t, err)
	m.started++
	name := fmt.Sprint(kind, "-", m.started)
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), "EPOCHFENCE_TEST_SHIPPER="+name, "EPOCHFENCE_TEST_GROUP="+m.topic,
		"EPOCHFENCE_DATABASE="+m.env["EPOCHFENCE_DATABASE"], "EPOCHFENCE_KAFKA="+m.env["EPOCHFENCE_KAFKA"])
	cmd.Stderr = os.Stderr
	must(m.t, cmd.Start())
	w := &worker{m.t, cmd, name}
	m.t.Cleanup(w.kill)
	return w
}

func (m *moving) starts(kind string) { m.new = append(m.new, m.start(kind)) }

// kill kills one of the new processes.
func (m *moving) kill(w *worker) {
	w.kill()
	m.new = slices.DeleteFunc(slices.Clone(m.new), func(o *worker) bool { return o == w })
}

func (m *moving) count(sql string, args ...any) (n int64) {
	m.t.Helper()
	must(m.t, m.pool.QueryRow(m.t.Context(), sql, args...).Scan(&n))
	return n
}

func (m *moving) effects() int64 { return m.count("select count(distinct order_id) from shipment") }

func (m *moving) doubled() int64 {
	n := m.count("select count(*) - count(distinct order_id) from shipment")
	m.t.Logf("%d messages sent, %d effects doubled", m.sent.Load(), n)
	return n
}

// more waits until so many more messages are applied.
func (m *moving) more(n int64) {
	m.t.Helper()
	want := m.effects() + n
	m.until(fmt.Sprintf("%d effects", want), func() bool { return m.effects() >= want })
}

func (m *moving) until(what string, holds func() bool) {
	m.t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	late := time.After(90 * time.Second)
	for !holds() {
		select {
		case <-tick.C:
		case <-late:
			m.t.Fatalf("waited in vain for %s; %d of %d are applied\n%s", what, m.effects(), m.sent.Load(), m.run("describe").out)
		}
	}
}

// replaceOld kills the old processes one by one, each in the middle of its work.
func (m *moving) replaceOld() {
	m.t.Helper()
	last := len(m.old) - 1
	for _, w := range m.old[:last] {
		m.more(rand.Int64N(200))
		w.kill()
		m.starts(beside)
	}
	m.more(300)
	m.until("a moment when it has applied more than it has committed", func() bool {
		must(m.t, subprocess.Freeze(m.old[last].cmd.Process))
		if m.uncommitted(m.old[last].name) {
			m.more(50) // by the others: by then the broker has taken what it had sent
			if m.uncommitted(m.old[last].name) {
				return true
			}
		}
		m.old[last].signal(syscall.SIGCONT)
		return false
	})
	m.old[last].kill()
}

// uncommitted reports whether a process has had effects beyond what the group has committed.
func (m *moving) uncommitted(worker string) bool {
	m.t.Helper()
	offsets, err := kadm.NewClient(m.client).FetchOffsets(m.t.Context(), m.topic)
	must(m.t, err)
	rows, err := m.pool.Query(m.t.Context(), "select number, max(message_offset) from shipment where worker = $1 group by number", worker)
	must(m.t, err)
	defer rows.Close()
	beyond := false
	for rows.Next() {
		var number int32
		var offset int64
		must(m.t, rows.Scan(&number, &offset))
		o, there := offsets.Lookup(m.topic, number)
		beyond = beyond || !there || o.At <= offset
	}
	must(m.t, rows.Err())
	return beyond
}

// pauseOne pauses a partition that has been claimed, and returns its name.
func (m *moving) pauseOne() (name string) {
	m.t.Helper()
	m.until("a partition to be claimed", func() bool {
		ps, err := m.op.Partitions(m.t.Context(), operate.Filter{Group: m.topic})
		must(m.t, err)
		at := slices.IndexFunc(ps, func(p operate.Partition) bool { return p.Epoch > 0 })
		if at >= 0 {
			name = ps[at].Fence.Partition.String()
		}
		return at >= 0
	})
	m.executes("pause", name)
	return name
}

func (m *moving) wantNo(when string) {
	m.t.Helper()
	if a := m.run("moveover", "--old-ended", "--wait", "0"); a.code != exitTrouble {
		m.t.Errorf("%s: exit code %d, want %d\n%s%s", when, a.code, exitTrouble, a.out, a.errs)
	}
}

func (m *moving) wantEventually(when string, holds func(answer) bool) {
	m.t.Helper()
	m.until("the command's answer "+when, func() bool {
		a := m.run("moveover", "--old-ended", "--wait", "2s")
		if a.code != exitOK && a.code != exitTrouble {
			m.t.Fatalf("exit code %d\n%s%s", a.code, a.out, a.errs)
		}
		return holds(a)
	})
}

// goAlone kills the processes that use the table, and starts as many without it.
func (m *moving) goAlone() {
	m.t.Helper()
	for _, w := range m.new {
		m.kill(w)
		m.starts(alone)
	}
	m.more(300)
}

// drain ends the load, and waits until all is applied.
func (m *moving) drain() {
	m.t.Helper()
	m.stopLoad()
	m.until("all to be applied", func() bool { return m.effects() == m.sent.Load() })
}
