package e2e_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/servers/pgtest"
	"github.com/epochfence/epochfence/outbox"
	"github.com/epochfence/epochfence/outbox/pgoutbox"
	"github.com/epochfence/epochfence/sinks/pgsink"
)

// Logical replication copies rows and no sequences. A group moves to the server that was
// replicated to, as in an upgrade with little downtime, and finds each identity behind its rows.
func TestAfterLogicalReplicationNoMessageIsBlamedAndNoEntryOvertakes(t *testing.T) {
	t.Parallel()
	const before, after = 40, 40
	logical := pgtest.Options{NoFsync: true, Settings: map[string]string{"wal_level": "logical"}}
	old, next := newReplica(t, logical), newReplica(t, logical)
	old.exec("create publication everything for table effects, epochfence.fence, epochfence.fence_ledger, epochfence.outbox_entry")
	next.exec("create subscription everything connection '" + old.server.URL(old.db.Name) + "' publication everything")
	t.Cleanup(func() {
		_, _ = next.admin.Exec(context.WithoutCancel(t.Context()), "drop subscription if exists everything")
	})

	var moved atomic.Bool
	target, err := pgx.ParseConfig(next.url)
	if err != nil {
		t.Fatal(err)
	}
	config, err := pgxpool.ParseConfig(old.url)
	if err != nil {
		t.Fatal(err)
	}
	config.MaxConns = 4
	config.BeforeConnect = func(_ context.Context, c *pgx.ConnConfig) error {
		if moved.Load() {
			c.Host, c.Port, c.Database, c.User, c.Password = target.Host, target.Port, target.Database, target.User, target.Password
		}
		return nil
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	sink, err := pgsink.Open(t.Context(), pool, pgsink.Options{Logger: quiet()})
	if err != nil {
		t.Fatal(err)
	}
	store, err := pgoutbox.Open[pgsink.Tx](t.Context(), pool, pgoutbox.Options{})
	if err != nil {
		t.Fatal(err)
	}

	c := newCluster(t, kfake.SeedTopics(1, topic), kfake.GroupMinSessionTimeout(time.Second))
	handle := func(ctx context.Context, tx pgsink.Tx, m consumer.Message, e epoch.Epoch) error {
		if m.Offset%10 == 9 {
			return consumer.Permanent(fmt.Errorf("poison"))
		}
		err := store.Add(ctx, tx, m, outbox.Entry{Key: "account", Scope: "account", IdempotencyKey: fmt.Sprint(m.Offset), Method: "POST", URL: "http://host/"})
		if err != nil {
			return err
		}
		return old.handle(ctx, tx, m, e)
	}
	produce(t, reach(c), numbered(topic, 0, before)...)
	r := start(t, newSource(t, soonLost(c)), sink, consumer.Each(handle).OnFailure(sink.DeadLetter), func(o *consumer.Options) { o.MaxBatch = 7 })
	r.advancedTo(part(group, topic), before)
	next.await(fmt.Sprintf("(select next_offset = %d from epochfence.fence) and (select count(*) = %d from epochfence.outbox_entry) and (select count(*) = %d from epochfence.fence_ledger where kind = 'dead-letter')",
		before, before*9/10, before/10))
	next.exec("drop subscription everything")
	moved.Store(true)
	pool.Reset()
	old.disconnect()

	produce(t, reach(c), numbered(topic, before, after)...)
	var fixed []string
	for { // as each identity is met with
		sql := r.toldRemedyOrAt(before+after, fixed)
		if sql == "" {
			break
		}
		next.exec(sql)
		fixed = append(fixed, sql)
	}
	r.stop()

	for _, table := range []string{"outbox_entry", "fence_ledger"} {
		if !strings.Contains(strings.Join(fixed, " "), table) {
			t.Errorf("no error told how to fix %s: %q", table, fixed)
		}
	}
	var order []int
	var dead string
	if err := next.admin.QueryRow(t.Context(), "select array_agg(idempotency_key::int order by id), (select string_agg(cause, ' ' order by id) from epochfence.fence_ledger where kind = 'dead-letter') from epochfence.outbox_entry").Scan(&order, &dead); err != nil {
		t.Fatal(err)
	}
	if len(order) != (before+after)*9/10 || !slices.IsSorted(order) {
		t.Errorf("the entries are in the order %v", order)
	}
	if strings.Count(dead, "poison") != (before+after)/10 || strings.Contains(dead, "pgoutbox") {
		t.Errorf("the dead letters say %q; want that of each poisonous message", dead)
	}
}

// replica is a database with all of epochfence's tables on a server of its own.
type replica struct {
	*onPostgres
	server *pgtest.Server
}

func newReplica(t testing.TB, o pgtest.Options) *replica {
	t.Helper()
	s := pgtest.StartServer(t, o)
	return &replica{postgresOn(t, s.Database(t)).granted(), s}
}

// await polls the database, as replication tells nobody. Rows that have not come yet make null of what is to hold.
func (d *replica) await(holds string) {
	d.Helper()
	err := within(d, patience, func(ctx context.Context) error {
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for yes := false; !yes; <-tick.C {
			if err := d.admin.QueryRow(ctx, "select coalesce("+holds+", false)").Scan(&yes); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		d.Fatal(err)
	}
}

// toldRemedyOrAt returns a statement that an error has told, other than those before, or
// nothing once the partition has reached an offset.
func (r *running) toldRemedyOrAt(at epoch.Offset, before []string) (sql string) {
	r.Helper()
	r.until("an error tells a remedy, or the partition has caught up", func(es []consumer.Event) bool {
		for _, e := range es {
			err := errorOf(e)
			switch e := e.(type) {
			case consumer.NotClaimed:
				err = e.Err
			case consumer.Advanced:
				if e.To == at {
					return true
				}
			}
			if err == nil {
				continue
			}
			_, told, found := strings.Cut(err.Error(), "run as the owner: ")
			told, _, _ = strings.Cut(told, " (SQLSTATE")
			if found && !slices.Contains(before, told) {
				sql = told
				return true
			}
		}
		return false
	})
	return sql
}
