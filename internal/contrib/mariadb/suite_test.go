package mariadb_test

import (
	"context"
	"crypto/rand"
	"database/sql"
	"fmt"
	"strings"
	"testing"

	_ "github.com/go-sql-driver/mysql"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/servers/mariatest"
	"github.com/epochfence/epochfence/internal/suites/sqlsinktest"
	"github.com/epochfence/epochfence/outbox/outboxtest"
	"github.com/epochfence/epochfence/outbox/sqloutbox"
	"github.com/epochfence/epochfence/sinks/sinktest"
	"github.com/epochfence/epochfence/sinks/sqlsink"
)

func open(t testing.TB, dsn string) *sql.DB {
	t.Helper()
	return sqlsinktest.Open(t, "mysql", dsn)
}

var (
	mustExec = sqlsinktest.Exec
	effects  = sqlsinktest.Effects
)

// newDatabase makes a database with the sink's tables and one for effects, and returns its DSN.
func newDatabase(t testing.TB, s *mariatest.Server) string {
	t.Helper()
	name := "t" + strings.ToLower(rand.Text())
	mustExec(t, open(t, s.DSN("", "")), `CREATE DATABASE `+name)
	dsn := s.DSN(name, "")
	sqlsinktest.MariaDB.Create(t, open(t, dsn))
	return dsn
}

func newSink(t testing.TB, dsn string, o sqlsink.Options) *sqlsink.Sink {
	t.Helper()
	return sqlsinktest.MariaDB.Sink(t, open(t, dsn), o)
}

func databaseOf(t testing.TB, dsn string) sinktest.Database[*sqlsink.Tx] {
	return sqlsinktest.MariaDB.Database(t, func(t testing.TB) *sql.DB { return open(t, dsn) })
}

// on returns a function that makes an empty database, for the suites.
func on(t *testing.T) func(t testing.TB) sinktest.Database[*sqlsink.Tx] {
	s := mariatest.Start(t)
	return func(t testing.TB) sinktest.Database[*sqlsink.Tx] { return databaseOf(t, newDatabase(t, s)) }
}

func TestSuite(t *testing.T)          { t.Parallel(); sinktest.Run(t, on(t)) }
func TestSuiteUnblocked(t *testing.T) { t.Parallel(); sinktest.RunUnblocked(t, on(t)) }
func TestSuiteOperated(t *testing.T)  { t.Parallel(); sinktest.RunOperated(t, on(t)) }

func TestSuiteOfTheOutbox(t *testing.T) {
	s := mariatest.Start(t)
	outboxtest.Run(t, func(t testing.TB) outboxtest.Rig[*sqlsink.Tx] {
		db := open(t, newDatabase(t, s))
		store, err := sqloutbox.Open[*sqlsink.Tx](t.Context(), db, sqloutbox.MariaDB, sqloutbox.Options{})
		if err != nil {
			t.Fatal(err)
		}
		return outboxtest.Rig[*sqlsink.Tx]{
			Sink: sqlsinktest.MariaDB.Sink(t, db, sqlsink.Options{}), Store: store, Operator: sqlsinktest.MariaDB.Operator(t, db),
		}
	})
}

var orders = epoch.Origin{Partition: epoch.Partition{Group: "billing", Topic: "orders"}, Log: "log", Source: "broker"}

// claim claims orders from whoever has it.
func claim(ctx context.Context, s *sqlsink.Sink, generation int64) (epoch.Fence, error) {
	seen, err := epoch.FenceOf(ctx, s, orders.Partition)
	if err != nil {
		return epoch.Fence{}, err
	}
	return s.Claim(ctx, seen, epoch.NewClaim(epoch.Lease{Origin: orders, Generation: generation, Owner: fmt.Sprint(generation)}))
}

func commit(ctx context.Context, s *sqlsink.Sink, f epoch.Fence, do func(ctx context.Context, tx *sqlsink.Tx) error) error {
	a := epoch.Advance{Partition: f.Partition, Claim: f.Claim, From: f.Next, To: f.Next + 1}
	return s.Commit(ctx, []epoch.Advance{a}, epoch.TxOptions{}, do)
}

func seeded(t *testing.T, s *sqlsink.Sink) {
	t.Helper()
	if err := s.Seed(t.Context(), []epoch.Start{{Origin: orders}}); err != nil {
		t.Fatal(err)
	}
}

func write(ctx context.Context, tx *sqlsink.Tx, value string) error {
	_, err := tx.ExecContext(ctx, `INSERT INTO effects (list, value) VALUES ('orders', ?)`, value)
	return err
}
