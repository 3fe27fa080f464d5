package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/servers/pgtest"
	"github.com/epochfence/epochfence/sinks/pgsink"
	"github.com/epochfence/epochfence/sinks/shardsink"
	"github.com/epochfence/epochfence/sinks/sinktest"
)

var schemaNumber atomic.Int64

// shardsOnPostgres makes each database of the suite a schema in each of several
// databases.
func shardsOnPostgres(route func(epoch.Partition, int) int, dbs ...*pgtest.Database) func(testing.TB) sinktest.Database[pgsink.Tx] {
	return func(t testing.TB) sinktest.Database[pgsink.Tx] {
		o := pgsink.Options{Schema: fmt.Sprintf("shards_%d", schemaNumber.Add(1)), Logger: quiet()}
		effects := pgx.Identifier{o.Schema, "effects"}.Sanitize()
		var readers []*pgxpool.Pool
		for _, db := range dbs {
			reader := newPool(t, fast(t, db.URL))
			if err := pgsink.Migrate(t.Context(), reader, o); err != nil {
				t.Fatal(err)
			}
			if _, err := reader.Exec(t.Context(), "create table "+effects+" (n bigint generated always as identity, list text, value text)"); err != nil {
				t.Fatal(err)
			}
			readers = append(readers, reader)
		}
		return sinktest.Database[pgsink.Tx]{
			Open: func(t testing.TB) epoch.Sink[pgsink.Tx] {
				var shards []epoch.Sink[pgsink.Tx]
				for _, db := range dbs {
					s, err := pgsink.Open(t.Context(), newPool(t, fast(t, db.URL)), o)
					if err != nil {
						t.Fatal(err)
					}
					shards = append(shards, s)
				}
				s, err := shardsink.New(route, shards...)
				if err != nil {
					t.Fatal(err)
				}
				return s
			},
			Append: func(ctx context.Context, tx pgsink.Tx, list, value string) error {
				_, err := tx.Exec(ctx, "insert into "+effects+" (list, value) values ($1::text, $2::text)", list, value)
				return err
			},
			List: func(ctx context.Context, list string) (all []string, err error) {
				for _, r := range readers {
					rows, err := r.Query(ctx, "select value from "+effects+" where list = $1 order by n", list)
					if err != nil {
						return nil, err
					}
					values, err := pgx.CollectRows(rows, pgx.RowTo[string])
					if err != nil {
						return nil, err
					}
					all = append(all, values...)
				}
				return all, nil
			},
			Commit: func(ctx context.Context, tx pgsink.Tx) error {
				_, err := tx.Exec(ctx, "commit")
				return err
			},
			Lock: func(t testing.TB) (unlock func()) {
				var ends []func()
				for _, r := range readers {
					tx, err := r.Begin(t.Context())
					if err == nil {
						_, err = tx.Exec(t.Context(), "lock table "+effects)
					}
					if err != nil {
						t.Fatal(err)
					}
					ends = append(ends, func() { _ = tx.Rollback(context.Background()) })
				}
				return func() {
					for _, end := range ends {
						end()
					}
				}
			},
		}
	}
}

// fast spares the suite, which crashes no server, the wait for the disk.
func fast(t testing.TB, database string) string {
	t.Helper()
	u, err := url.Parse(database)
	if err != nil {
		t.Fatal(err)
	}
	q := u.Query()
	q.Set("synchronous_commit", "off")
	u.RawQuery = q.Encode()
	return u.String()
}

// The histories of the suite advance several partitions in one transaction, so all of a
// group are in one shard: here in the second, and decided in the first. With EPOCHFENCE_LONG it
// plays the whole suite, and otherwise what other databases may leave out.
func TestTwoPostgresDatabasesPassTheSuiteOfSinks(t *testing.T) {
	t.Parallel()
	create := shardsOnPostgres(func(epoch.Partition, int) int { return 1 }, pgtest.Start(t), pgtest.Start(t))
	t.Run("unblocked", func(t *testing.T) { t.Parallel(); sinktest.RunUnblocked(t, create) })
	if os.Getenv("EPOCHFENCE_LONG") != "" {
		t.Run("whole", func(t *testing.T) { t.Parallel(); sinktest.Run(t, create) })
	}
}

func TestOneOfTwoPostgresServersThatIsDownHoldsUpItsOwnPartitionsAndNothingIsLost(t *testing.T) {
	t.Parallel()
	servers := [2]*pgtest.Server{pgtest.StartServer(t, pgtest.Options{NoFsync: true}), pgtest.StartServer(t, pgtest.Options{NoFsync: true})}
	dbs := [2]*onPostgres{postgresOn(t, servers[0].Database(t)).granted(), postgresOn(t, servers[1].Database(t)).granted()}
	sink, err := shardsink.New(shardsink.ByNumber, dbs[0].sink, dbs[1].sink)
	if err != nil {
		t.Fatal(err)
	}
	c := newCluster(t, kfake.SeedTopics(4, topic))
	to := func(first, n int) {
		for p := range int32(4) {
			rs := numbered(topic, first, n)
			for _, r := range rs {
				r.Partition, r.Key = p, fmt.Append(nil, p)
			}
			produce(t, reach(c), rs...)
		}
	}
	partition := func(n int32) epoch.Partition { return epoch.Partition{Group: group, Topic: topic, Number: n} }
	to(0, 10)
	r := start(t, newSource(t, from(reach(c))), sink, consumer.Each(func(ctx context.Context, tx pgsink.Tx, m consumer.Message, e epoch.Epoch) error {
		if m.Partition.Number == 3 && m.Offset == 5 {
			return consumer.Permanent(errors.New("poison"))
		}
		return dbs[0].handle(ctx, tx, m, e)
	}).OnFailure(dbs[0].sink.DeadLetter)) // which serves both
	for n := range int32(4) {
		r.advancedTo(partition(n), 10)
	}
	if err := servers[1].Stop(pgtest.Immediate); err != nil {
		t.Fatal(err)
	}
	to(10, 10)
	r.advancedTo(partition(0), 20)
	r.advancedTo(partition(2), 20)
	r.reported(soonEnough, "pgsink: ", "billing/orders/1")
	to(20, 10) // and they continue, with nothing to wait for
	r.advancedTo(partition(0), 30)
	r.advancedTo(partition(2), 30)
	if err := servers[1].Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.advancedTo(partition(1), 30)
	r.advancedTo(partition(3), 30)
	r.stop()
	dbs[1].admin = dbs[1].db.Superuser(t) // the other connection went with the server
	for i, db := range dbs {
		of := map[string][]effect{}
		for _, e := range db.applied() {
			of[e.key] = append(of[e.key], e)
		}
		if len(of) != 2 {
			t.Errorf("database %d has effects of %d partitions", i, len(of))
		}
		for _, n := range []int{i, i + 2} {
			want := counted(30)
			if n == 3 {
				want = slices.Delete(want, 5, 6)
			}
			wantValues(t, of[fmt.Sprint(n)], want)
		}
	}
	if letter, _ := dbs[1].dead(); letter.value != "5" {
		t.Errorf("the dead letter is %q", letter.value)
	}
	for _, e := range r.seen() {
		if h, ok := e.(consumer.Halted); ok && h.Partition.Number%2 == 0 {
			t.Errorf("halted: %+v", h)
		}
	}
}
