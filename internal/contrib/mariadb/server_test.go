package mariadb_test

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/servers/mariatest"
	"github.com/epochfence/epochfence/internal/sql/sqltext"
	"github.com/epochfence/epochfence/migrations"
	"github.com/epochfence/epochfence/sinks/sqlsink"
)

func TestOpenRefusesSettingsThatDoNotFitAndSaysWhatToChange(t *testing.T) {
	t.Parallel()
	server := mariatest.Start(t)
	dsn := newDatabase(t, server)
	database := dsn[strings.Index(dsn, "/")+1 : strings.Index(dsn, "?")]
	for parameters, says := range map[string]string{
		"parseTime=true&clientFoundRows=true&loc=Local":                               "",
		"multiStatements=true&interpolateParams=true&clientFoundRows=true":            "",
		"tx_isolation=" + url.QueryEscape("'SERIALIZABLE'") + "&clientFoundRows=true": "",
		"parseTime=true":                                                               "add clientFoundRows=true",
		"clientFoundRows=true&autocommit=0":                                            "autocommit is off",
		"clientFoundRows=true&charset=latin1":                                          "character_set_client",
		"clientFoundRows=true&charset=utf8":                                            "set charset=utf8mb4", // an emoji in the text of a dead letter
		"clientFoundRows=true&character_set_connection=latin1":                         "utf8mb4, latin1",     // 日本 and 中国 would be one group
		"clientFoundRows=true&sql_safe_updates=1":                                      "sql_safe_updates",
		"clientFoundRows=true&sql_select_limit=1000":                                   "sql_select_limit",
		"clientFoundRows=true&tx_isolation=%27READ-UNCOMMITTED%27":                     "READ-UNCOMMITTED",
		"clientFoundRows=true&sql_mode=%27STRICT_ALL_TABLES%2CEMPTY_STRING_IS_NULL%27": "EMPTY_STRING_IS_NULL",
		"clientFoundRows=true&completion_type=1":                                       "completion_type",
		"clientFoundRows=true&sql_mode=%27%27":                                         "add STRICT_TRANS_TABLES",
		"clientFoundRows=true&sql_mode=%27STRICT_ALL_TABLES%2CANSI_QUOTES%27":          "remove ANSI_QUOTES",
	} {
		_, err := sqlsink.Open(t.Context(), open(t, server.DSN(database, parameters)), sqlsink.MariaDB, sqlsink.Options{})
		if (err == nil) != (says == "") || err != nil && !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v, want %q", parameters, err, says)
		}
	}
	_, err := sqlsink.Open(t.Context(), open(t, server.DSN("", "")), sqlsink.MariaDB, sqlsink.Options{})
	if err == nil || !strings.Contains(err.Error(), "names no database") {
		t.Error(err)
	}
	statements := mariatest.Start(t, "--log-bin=log", "--binlog-format=STATEMENT", "--server-id=1")
	if _, err := sqlsink.Open(t.Context(), open(t, statements.DSN("mysql", "")), sqlsink.MariaDB, sqlsink.Options{}); err == nil || !strings.Contains(err.Error(), "binlog_format") {
		t.Error(err)
	}
}

// CREATE TABLE commits, so a migration can end half way.
func TestMigrationsWaitForEachOtherAndGoOnWhereOneEnded(t *testing.T) {
	t.Parallel()
	server := mariatest.Start(t)
	mustExec(t, open(t, server.DSN("", "")), `CREATE DATABASE app`)
	db := open(t, server.DSN("app", ""))
	if _, err := sqlsink.Open(t.Context(), db, sqlsink.MariaDB, sqlsink.Options{}); !errors.Is(err, migrations.ErrNotMigrated) {
		t.Errorf("%v, want %v", err, migrations.ErrNotMigrated)
	}
	all, err := sqlsink.Migrations(sqlsink.MariaDB, sqlsink.Options{})
	if err != nil {
		t.Fatal(err)
	}
	first, _, _ := strings.Cut(all[0].SQL, ";")
	mustExec(t, db, first)
	var migrating sync.WaitGroup
	for range 8 {
		migrating.Go(func() {
			if err := sqlsink.Migrate(t.Context(), db, sqlsink.MariaDB, sqlsink.Options{}); err != nil {
				t.Error(err)
			}
		})
	}
	migrating.Wait()
	var versions int
	if err := db.QueryRowContext(t.Context(), `SELECT COUNT(*) FROM epochfence_migration`).Scan(&versions); err != nil || versions != len(all) {
		t.Errorf("%d versions, %v; want %d", versions, err, len(all))
	}
	newSink(t, server.DSN("app", ""), sqlsink.Options{})
}

// A later script too must be able to run again after a statement of it has been committed: by ADD COLUMN IF NOT
// EXISTS, for instance.
func TestEachScriptRunsAgainFromItsBeginningWhereverItBrokeOff(t *testing.T) {
	t.Parallel()
	server := mariatest.Start(t)
	all, err := sqlsink.Migrations(sqlsink.MariaDB, sqlsink.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for i, m := range all {
		statements := sqltext.Split(m.SQL, sqltext.MariaDB)
		for broke := range statements {
			name := fmt.Sprintf("v%d_%d", m.Version, broke)
			mustExec(t, open(t, server.DSN("", "")), `CREATE DATABASE `+name)
			db := open(t, server.DSN(name, ""))
			for _, before := range all[:i] {
				mustExec(t, db, sqltext.Split(before.SQL, sqltext.MariaDB)...)
			}
			mustExec(t, db, statements[:broke]...)
			if err := sqlsink.Migrate(t.Context(), db, sqlsink.MariaDB, sqlsink.Options{}); err != nil {
				t.Errorf("version %d after its first %d statements: %v", m.Version, broke, err)
			}
			newSink(t, server.DSN(name, ""), sqlsink.Options{})
		}
	}
}

// The session is the user's again after a transaction, whatever its end.
func TestAConnectionIsGivenBackWithTheSettingsItHad(t *testing.T) {
	t.Parallel()
	server := mariatest.Start(t)
	dsn := newDatabase(t, server) + "&innodb_lock_wait_timeout=7&idle_transaction_timeout=77&max_statement_time=7.5&tx_isolation=%27SERIALIZABLE%27"
	db := open(t, dsn)
	db.SetMaxOpenConns(1)
	s, err := sqlsink.Open(t.Context(), db, sqlsink.MariaDB, sqlsink.Options{})
	if err != nil {
		t.Fatal(err)
	}
	seeded(t, s)
	f, err := claim(t.Context(), s, 1)
	if err != nil {
		t.Fatal(err)
	}
	const settings = `SELECT CONCAT_WS(' ', CONNECTION_ID(), @@innodb_lock_wait_timeout, @@idle_transaction_timeout, @@max_statement_time, @@tx_isolation)`
	look := func(q interface {
		QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
	}) (said string) {
		if err := q.QueryRowContext(t.Context(), settings).Scan(&said); err != nil {
			t.Error(err)
		}
		return said
	}
	before := look(db)
	within, isolation := "", ""
	for _, fails := range []error{errors.New("on purpose"), nil} {
		err := commit(t.Context(), s, f, func(ctx context.Context, tx *sqlsink.Tx) error {
			within = look(tx)
			if err := write(ctx, tx, "v"); err != nil {
				return err
			}
			if err := tx.QueryRowContext(ctx, `SELECT trx_isolation_level FROM information_schema.innodb_trx WHERE trx_mysql_thread_id = CONNECTION_ID()`).Scan(&isolation); err != nil {
				return err
			}
			return fails
		})
		if !errors.Is(err, fails) {
			t.Errorf("%v, want %v", err, fails)
		}
		if after := look(db); after != before || within == before || isolation != "READ COMMITTED" {
			t.Errorf("the settings were %q, in the transaction %q with %s, and then %q", before, within, isolation, after)
		}
	}
}

// A deadlock rolls the whole transaction back. Nothing more is sent, and it is nobody's fault.
func TestADeadlockIsTransientAndNothingOfItsTransactionIsCommitted(t *testing.T) {
	t.Parallel()
	server := mariatest.Start(t)
	dsn := newDatabase(t, server)
	db := open(t, dsn)
	mustExec(t, db, `CREATE TABLE counts (k INT PRIMARY KEY, n INT)`, `INSERT INTO counts VALUES (1, 0), (2, 0)`)
	s := newSink(t, dsn, sqlsink.Options{})
	seeded(t, s)
	f, err := claim(t.Context(), s, 1)
	if err != nil {
		t.Fatal(err)
	}
	other, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Rollback() }()
	// The other transaction has written more, so that the handler's is the victim.
	for _, text := range []string{`INSERT INTO effects (list, value) SELECT 'other', seq FROM seq_1_to_1000`, `UPDATE counts SET n = n + 1 WHERE k = 2`} {
		if _, err := other.ExecContext(t.Context(), text); err != nil {
			t.Fatal(err)
		}
	}
	done := make(chan error, 1)
	err = commit(t.Context(), s, f, func(ctx context.Context, tx *sqlsink.Tx) error {
		if err := write(ctx, tx, "victim"); err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, `UPDATE counts SET n = n + 1 WHERE k = 1`); err != nil {
			return err
		}
		go func() {
			_, err := other.ExecContext(t.Context(), `UPDATE counts SET n = n + 1 WHERE k = 1`)
			done <- err
		}()
		if _, err := tx.ExecContext(ctx, `UPDATE counts SET n = n + 1 WHERE k = 2`); err == nil {
			t.Error("no deadlock")
		}
		if write(ctx, tx, "after") == nil {
			t.Error("a statement was sent after the deadlock")
		}
		return nil
	})
	if !errors.Is(err, epoch.ErrTransient) {
		t.Errorf("%v, want %v", err, epoch.ErrTransient)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	if got, err := effects(t.Context(), db, "orders"); err != nil || len(got) > 0 {
		t.Errorf("effects %q, %v", got, err)
	}
}

// A procedure that commits is noticed at once, so that the fence is not moved, and nothing more is sent.
func TestATransactionThatAProcedureHasEndedIsNotCommitted(t *testing.T) {
	t.Parallel()
	server := mariatest.Start(t)
	dsn := newDatabase(t, server)
	db := open(t, dsn)
	mustExec(t, db, `CREATE PROCEDURE renews() BEGIN COMMIT; START TRANSACTION; END`)
	s := newSink(t, dsn, sqlsink.Options{})
	seeded(t, s)
	f, err := claim(t.Context(), s, 1)
	if err != nil {
		t.Fatal(err)
	}
	err = commit(t.Context(), s, f, func(ctx context.Context, tx *sqlsink.Tx) error {
		_, _ = tx.ExecContext(ctx, `CALL renews()`)
		_ = write(ctx, tx, "after")
		return nil
	})
	if !errors.Is(err, epoch.ErrTxEndedByHandler) {
		t.Errorf("%v, want %v", err, epoch.ErrTxEndedByHandler)
	}
	now, err := epoch.FenceOf(t.Context(), s, orders.Partition)
	if got, errList := effects(t.Context(), db, "orders"); err != nil || errList != nil || now.Next != 0 || len(got) > 0 {
		t.Errorf("the fence is at %d, effects %q, %v, %v", now.Next, got, err, errList)
	}
}

// A connection that is lost at COMMIT leaves the outcome open, and one that is lost before it is no
// message's fault either. The fence tells which it was.
func TestALostConnectionIsInDoubtAndTheFenceTells(t *testing.T) {
	t.Parallel()
	server := mariatest.Start(t)
	var lose atomic.Value
	lose.Store("nothing")
	mysql.RegisterDialContext("cut", func(ctx context.Context, address string) (net.Conn, error) {
		c, err := new(net.Dialer).DialContext(ctx, "tcp", address)
		return &cut{c, &lose}, err
	})
	for what, landed := range map[string]bool{"the answer to COMMIT": true, "COMMIT": false, "RELEASE": false, "START": false} {
		dsn := newDatabase(t, server)
		s := newSink(t, strings.Replace(dsn, "@tcp(", "@cut(", 1), sqlsink.Options{})
		seeded(t, s)
		f, err := claim(t.Context(), s, 1)
		if err != nil {
			t.Fatal(err)
		}
		lose.Store(what)
		err = commit(t.Context(), s, f, func(ctx context.Context, tx *sqlsink.Tx) error { return write(ctx, tx, "v") })
		if !errors.Is(err, epoch.ErrInDoubt) {
			t.Errorf("%s: %v, want %v", what, err, epoch.ErrInDoubt)
		}
		lose.Store("nothing")
		now, err := epoch.FenceOf(t.Context(), s, orders.Partition)
		got, errList := effects(t.Context(), open(t, dsn), "orders")
		if err := errors.Join(err, errList); err != nil || (now.Next == 1) != landed || (len(got) == 1) != landed {
			t.Errorf("%s: the fence is at %d, effects %q, %v; landed: %v", what, now.Next, got, err, landed)
		}
	}
}

// cut is a connection that ends at a statement, or at the answer to it.
type cut struct {
	net.Conn
	lose *atomic.Value
}

func (c *cut) Write(p []byte) (int, error) {
	statement, answer := strings.CutPrefix(c.lose.Load().(string), "the answer to ")
	if len(p) < 5 || !bytes.HasPrefix(p[5:], []byte(statement)) { // after the header and the command
		return c.Conn.Write(p)
	}
	if answer {
		_, _ = c.Conn.Write(p)
		_, _ = c.Conn.Read(make([]byte, 1))
	}
	_ = c.Close()
	return 0, net.ErrClosed
}
