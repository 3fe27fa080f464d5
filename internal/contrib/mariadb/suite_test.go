package mariadb_test

import (
	"context"
	"crypto/rand"
	"database/sql"
	"fmt"
	"strings"
	"sync"
	"testing"

	_ "github.com/go-sql-driver/mysql"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/servers/mariatest"
	"github.com/epochfence/epochfence/operate"
	"github.com/epochfence/epochfence/sinks/sinktest"
	"github.com/epochfence/epochfence/sinks/sqlsink"
)

func open(t testing.TB, dsn string) *sql.DB {
	t.Helper()
	db, err := sql.Open("mysql", dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db
}

func mustExec(t testing.TB, db *sql.DB, statements ...string) {
	t.Helper()
	for _, s := range statements {
		if _, err := db.ExecContext(context.Background(), s); err != nil {
			t.Fatalf("%s: %v", s, err)
		}
	}
}

const effectsTable = `CREATE TABLE effects (id BIGINT PRIMARY KEY AUTO_INCREMENT, list VARBINARY(4096) NOT NULL, value VARBINARY(4096) NOT NULL, KEY (list(100)))`

// newDatabase makes a database with the sink's tables and one for effects, and returns its DSN.
func newDatabase(t testing.TB, s *mariatest.Server) string {
	t.Helper()
	name := "t" + strings.ToLower(rand.Text())
	admin := open(t, s.DSN("", ""))
	mustExec(t, admin, `CREATE DATABASE `+name)
	dsn := s.DSN(name, "")
	db := open(t, dsn)
	mustExec(t, db, effectsTable)
	if err := sqlsink.Migrate(t.Context(), db, sqlsink.MariaDB, sqlsink.Options{}); err != nil {
		t.Fatal(err)
	}
	return dsn
}

func newSink(t testing.TB, dsn string, o sqlsink.Options) *sqlsink.Sink {
	t.Helper()
	s, err := sqlsink.Open(t.Context(), open(t, dsn), sqlsink.MariaDB, o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func newOperator(t testing.TB, dsn string) operate.Operator {
	t.Helper()
	op, err := sqlsink.OpenOperator(t.Context(), open(t, dsn), sqlsink.MariaDB, sqlsink.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return op
}

func effects(ctx context.Context, db *sql.DB, list string) (all []string, err error) {
	rows, err := db.QueryContext(ctx, `SELECT value FROM effects WHERE list = ? ORDER BY id`, list)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var v string
		if err := rows.Scan(&v); err != nil {
			return nil, err
		}
		all = append(all, v)
	}
	return all, rows.Err()
}

func databaseOf(t testing.TB, dsn string) sinktest.Database[*sqlsink.Tx] {
	reader := open(t, dsn)
	operator := sync.OnceValue(func() operate.Operator { return newOperator(t, dsn) }) // idioms ask for it all the time
	return sinktest.Database[*sqlsink.Tx]{
		Open: func(t testing.TB) epoch.Sink[*sqlsink.Tx] { return newSink(t, dsn, sqlsink.Options{}) },
		Append: func(ctx context.Context, tx *sqlsink.Tx, list, value string) error {
			_, err := tx.ExecContext(ctx, `INSERT INTO effects (list, value) VALUES (?, ?)`, list, value)
			return err
		},
		List: func(ctx context.Context, list string) ([]string, error) { return effects(ctx, reader, list) },
		Commit: func(ctx context.Context, tx *sqlsink.Tx) error {
			_, err := tx.ExecContext(ctx, `COMMIT`)
			return err
		},
		Lock: func(t testing.TB) (unlock func()) {
			db := open(t, dsn)
			db.SetMaxOpenConns(1)
			mustExec(t, db, `LOCK TABLES effects WRITE`)
			return func() { mustExec(t, db, `UNLOCK TABLES`) }
		},
		Aside: func(ctx context.Context, query string) error {
			_, err := reader.ExecContext(ctx, query)
			return err
		},
		Operator:   func(testing.TB) operate.Operator { return operator() },
		DeadLetter: newSink(t, dsn, sqlsink.Options{}).DeadLetter,
	}
}

// on returns a function that makes an empty database, for the suites.
func on(t *testing.T) func(t testing.TB) sinktest.Database[*sqlsink.Tx] {
	s := mariatest.Start(t)
	return func(t testing.TB) sinktest.Database[*sqlsink.Tx] { return databaseOf(t, newDatabase(t, s)) }
}

func TestSuite(t *testing.T)          { sinktest.Run(t, on(t)) }
func TestSuiteUnblocked(t *testing.T) { sinktest.RunUnblocked(t, on(t)) }
func TestSuiteOperated(t *testing.T)  { sinktest.RunOperated(t, on(t)) }

var orders = epoch.Origin{Partition: epoch.Partition{Group: "billing", Topic: "orders"}, Log: "log", Source: "broker"}

// claim claims orders from whoever has it.
func claim(ctx context.Context, s *sqlsink.Sink, generation int64) (epoch.Fence, error) {
	seen, err := s.Fence(ctx, orders.Partition)
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
