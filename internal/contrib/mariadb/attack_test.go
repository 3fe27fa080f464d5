package mariadb_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/servers/mariatest"
	"github.com/epochfence/epochfence/sinks/sqlsink"
)

// This file attacks a transaction from within: by texts, payloads, names and engines. attack_outside_test.go attacks
// it from outside.

var routines = []string{
	`CREATE PROCEDURE commits() COMMIT`,
	`CREATE PROCEDURE rolls_back() ROLLBACK`,
	`CREATE PROCEDURE starts() START TRANSACTION`,
	`CREATE PROCEDURE alters() ALTER TABLE other COMMENT = 'x'`,
	`CREATE PROCEDURE shows_and_commits() BEGIN SELECT 1; COMMIT; SELECT 2; END`,
	`CREATE PROCEDURE shows_and_fails() BEGIN SELECT 1; INSERT INTO other VALUES (7); SIGNAL SQLSTATE '45000'; END`,
	`CREATE PROCEDURE manual() BEGIN SET autocommit = 0; COMMIT; END`,
	`CREATE TABLE other (i INT)`,
	`CREATE SEQUENCE numbers`,
	`INSERT INTO other VALUES (1)`,
}

// unprepared are texts whose results the driver waits for, without an end, if they are prepared: by hand too.
var unprepared = regexp.MustCompile(`^(CHECKSUM|SHOW CREATE|DESC|EXPLAIN|ANALYZE UPDATE|HELP)`)

// A handler sends texts of all kinds between two writes, and hides their errors. Either both writes are
// committed with the fence, or none is, or the sink says that the handler has ended the transaction. The
// connection comes back as it was, or not at all.
func TestNoTextCommitsWithoutTheFence(t *testing.T) {
	t.Parallel()
	server := mariatest.Start(t)
	texts := []string{
		"COMMIT", "BEGIN", "BEGIN WORK", "START TRANSACTION", "ROLLBACK", "ROLLBACK AND CHAIN", "COMMIT AND CHAIN", "COMMIT RELEASE", "SET autocommit=1", "SET @@session.autocommit=0", "SET @@autocommit=0, @@autocommit=1",
		"SET STATEMENT max_statement_time=1 FOR COMMIT", "SET STATEMENT max_statement_time=1 FOR START TRANSACTION", "SET STATEMENT max_statement_time=1 FOR TRUNCATE TABLE other", "SET SESSION completion_type = 1", "SET SESSION completion_type = 2",
		"/*!COMMIT*/", "/*M!COMMIT*/", "/*!50000 COMMIT */", "/*!999999 COMMIT */ SELECT 1", "/* x */ COMMIT", "-- x\nCOMMIT", "#x\nCOMMIT", "--\nCOMMIT", "--\tx\nCOMMIT", "(COMMIT)", "SELECT 1; COMMIT", "SELECT 1 /*!; COMMIT */", "SELECT '\\'; COMMIT; -- '",
		"SELECT 1 -- ;\n; COMMIT", "; COMMIT", "SELECT \"'\"; COMMIT; SELECT \"'\"", "SELECT `'` FROM (SELECT 1 `'`) x; COMMIT; SELECT 1 `'`", "SELECT 1 AS '''' ; COMMIT",
		"CREATE TABLE x (i INT)", "CREATE TABLE IF NOT EXISTS effects (i INT)", "CREATE OR REPLACE TABLE other (i INT)", "LOCK TABLES effects WRITE", "UNLOCK TABLES", "LOCK TABLES other READ", "XA START 'x'", "XA BEGIN 'x'", "XA COMMIT 'x' ONE PHASE",
		"CALL commits()", "CALL rolls_back()", "CALL starts()", "CALL alters()", "CALL shows_and_commits()", "CALL shows_and_fails()", "CALL manual()",
		"PREPARE s FROM 'COMMIT'", "PREPARE s FROM 'COMMIT'; EXECUTE s", "EXECUTE IMMEDIATE 'COMMIT'", "EXECUTE IMMEDIATE CONCAT('COM','MIT')", "EXECUTE IMMEDIATE 'TRUNCATE TABLE other'", "BEGIN NOT ATOMIC COMMIT; END", "IF 1 THEN COMMIT; END IF", "FOR i IN 1..1 DO COMMIT; END FOR", "WHILE 0 DO COMMIT; END WHILE", "a: LOOP COMMIT; LEAVE a; END LOOP", "REPEAT COMMIT; UNTIL 1 END REPEAT", "CASE 1 WHEN 1 THEN COMMIT; END CASE", "LOOP COMMIT",
		"HANDLER effects OPEN", "CREATE EVENT e ON SCHEDULE AT NOW() DO INSERT INTO other VALUES (3)", "ANALYZE TABLE effects", "ANALYZE LOCAL TABLE effects", "CHECK TABLE effects", "OPTIMIZE TABLE effects", "REPAIR TABLE effects", "FLUSH TABLES", "FLUSH STATUS", "SET PASSWORD = ''", "SET DEFAULT ROLE NONE", "SET ROLE NONE", "CACHE INDEX effects IN DEFAULT", "LOAD INDEX INTO CACHE effects", "TRUNCATE other", "RENAME TABLE other TO other2", "CHECKSUM TABLE other", "SHOW CREATE TABLE effects", "DO SLEEP(0)",
		"CREATE TEMPORARY TABLE epochfence_fence LIKE epochfence_fence", "CREATE OR REPLACE TEMPORARY TABLE epochfence_ledger (i INT)", "CREATE TEMPORARY SEQUENCE q", "CREATE TEMPORARY TABLE made SELECT * FROM other", "DROP TEMPORARY TABLE IF EXISTS made", "DROP TABLE IF EXISTS made", "DROP VIEW IF EXISTS v", "CREATE VIEW v AS SELECT 1",
		"SELECT 1 INTO @x", "SET @x = 1", "SELECT @y := 1", "SELECT GET_LOCK('l', 0)", "DO GET_LOCK('m', 0)", "SELECT `GET_LOCK`('n', 0)",
		"BACKUP STAGE START", "BACKUP LOCK other", "KILL QUERY CONNECTION_ID()", "KILL CONNECTION_ID()", "SIGNAL SQLSTATE '45000'", "RESIGNAL", "BINLOG 'x'", "START SLAVE", "STOP SLAVE", "CHANGE MASTER TO MASTER_HOST='x'", "RESET MASTER", "PURGE BINARY LOGS TO 'x'",
		"SELECT NEXTVAL(numbers)", "ALTER SEQUENCE numbers RESTART 7", "DROP SEQUENCE IF EXISTS q", "SET NAMES latin1", "SET character_set_client = latin1", "SET SESSION sql_mode = ''", "SET SESSION sql_mode = 'NO_BACKSLASH_ESCAPES,ANSI_QUOTES'", "SET SESSION sql_mode = 'ORACLE'", "SET SESSION TRANSACTION ISOLATION LEVEL SERIALIZABLE", "SET SESSION TRANSACTION READ ONLY", "SET time_zone = '+09:00'", "SET foreign_key_checks = 0", "SET sql_select_limit = 0", "SET sql_safe_updates = 1", "SET timestamp = 1", "SET SESSION max_statement_time = 0", "SET SESSION innodb_lock_wait_timeout = 1000", "SET sql_log_bin = 0", "SET pseudo_thread_id = 1", "SET @epochfence_lock = 3",
		"GET DIAGNOSTICS @n = NUMBER", "INSERT INTO other VALUES (2) RETURNING i", "VALUES (1)", "TABLE other", "DESC other", "EXPLAIN EXTENDED SELECT 1", "ANALYZE FORMAT=JSON DELETE FROM other WHERE i = 9", "ANALYZE UPDATE other SET i = i", "SHOW WARNINGS", "INSTALL SONAME 'x'", "CREATE USER u", "GRANT SELECT ON other TO root@localhost", "HELP 'x'", "SAVEPOINT s", "ROLLBACK TO s", "ROLLBACK WORK TO SAVEPOINT s", "RELEASE SAVEPOINT s",
	}
	type way struct {
		name string
		send func(ctx context.Context, tx *sqlsink.Tx, text string) error
	}
	ways := []way{
		{"Exec", func(ctx context.Context, tx *sqlsink.Tx, text string) error {
			_, err := tx.ExecContext(ctx, text)
			return err
		}},
		{"Query", func(ctx context.Context, tx *sqlsink.Tx, text string) error {
			rows, err := tx.QueryContext(ctx, text)
			if err != nil {
				return err
			}
			for rows.Next() {
			}
			return errors.Join(rows.Err(), rows.Close())
		}},
		{"Prepare", func(ctx context.Context, tx *sqlsink.Tx, text string) error {
			s, err := tx.PrepareContext(ctx, text)
			if err != nil {
				return err
			}
			_, err = s.ExecContext(ctx)
			return err
		}},
	}
	for _, parameters := range []string{"clientFoundRows=true", "clientFoundRows=true&multiStatements=true&interpolateParams=true&parseTime=true"} {
		dsn := strings.Replace(newDatabase(t, server), "clientFoundRows=true", parameters, 1)
		side := open(t, dsn)
		mustExec(t, side, routines...)
		db := open(t, dsn)
		db.SetMaxOpenConns(1)
		s, err := sqlsink.Open(t.Context(), db, sqlsink.MariaDB, sqlsink.Options{})
		if err != nil {
			t.Fatal(err)
		}
		seeded(t, s)
		state := func(q interface {
			QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
		}) (said string) {
			err := q.QueryRowContext(t.Context(), `SELECT CONCAT_WS(' ', CONNECTION_ID(), DATABASE(), @@autocommit, @@sql_mode, @@tx_isolation, @@tx_read_only, @@time_zone, @@character_set_client, @@completion_type, @@foreign_key_checks, @@innodb_lock_wait_timeout, @@max_statement_time, @@in_transaction, COALESCE(@x, '-'), COALESCE(@y, '-'), COALESCE(IS_USED_LOCK('l') = CONNECTION_ID(), ''), COALESCE(IS_USED_LOCK('m') = CONNECTION_ID(), ''), COALESCE(IS_USED_LOCK('n') = CONNECTION_ID(), ''))`).Scan(&said)
			if err != nil {
				t.Errorf("state: %v", err)
			}
			return said
		}
		for _, text := range texts {
			for _, w := range ways {
				if w.name == "Prepare" && unprepared.MatchString(text) {
					continue
				}
				f, err := claim(t.Context(), s, 1)
				if err != nil {
					t.Fatal(err)
				}
				before := state(db)
				err = commit(t.Context(), s, f, func(ctx context.Context, tx *sqlsink.Tx) error {
					_ = write(ctx, tx, "before")
					_ = w.send(ctx, tx, text)
					_ = write(ctx, tx, "after")
					return nil
				})
				after := state(db)
				name := fmt.Sprintf("%s %q", w.name, text)
				now, errFence := epoch.FenceOf(t.Context(), s, orders.Partition)
				got, errList := effects(t.Context(), side, "orders")
				if e := errors.Join(errFence, errList); e != nil {
					t.Fatal(name, e)
				}
				moved := now.Next != f.Next
				switch {
				case err == nil && moved && slices.Equal(got, []string{"before", "after"}):
				case err != nil && !moved && len(got) == 0:
				case errors.Is(err, epoch.ErrTxEndedByHandler) && !moved && slices.Equal(got, []string{"before"}):
				default:
					t.Errorf("%s: %v; moved %t, effects %q", name, err, moved, got)
				}
				if id, _, _ := strings.Cut(before, " "); before != after && strings.HasPrefix(after, id+" ") {
					t.Errorf("%s has left %q, was %q", name, after, before)
				}
				mustExec(t, side, `DELETE FROM effects`)
			}
		}
	}
}

// The rows of a text with several results are read to the end, so that an error in a later one counts.
func TestAnErrorAfterTheFirstResultIsTheHandlers(t *testing.T) {
	t.Parallel()
	server := mariatest.Start(t)
	dsn := newDatabase(t, server) + "&multiStatements=true"
	db := open(t, dsn)
	mustExec(t, db, routines...)
	s := newSink(t, dsn, sqlsink.Options{})
	seeded(t, s)
	for _, text := range []string{"SELECT 1; SELECT 2; SIGNAL SQLSTATE '45000'", "CALL shows_and_fails()", "SELECT 1; INSERT INTO other VALUES (1); INSERT INTO other VALUES ('x')"} {
		f, err := claim(t.Context(), s, 1)
		if err != nil {
			t.Fatal(err)
		}
		err = commit(t.Context(), s, f, func(ctx context.Context, tx *sqlsink.Tx) error {
			rows, err := tx.QueryContext(ctx, text)
			if err != nil {
				return err
			}
			for rows.Next() {
			}
			return errors.Join(rows.Err(), rows.Close())
		})
		if err == nil {
			t.Errorf("%s: committed", text)
		}
	}
}

// After it, the next write would be committed by itself.
func TestADeadlockInALaterStatementOfATextEndsTheTransaction(t *testing.T) {
	t.Parallel()
	server := mariatest.Start(t)
	dsn := newDatabase(t, server) + "&multiStatements=true"
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
	for _, text := range []string{`INSERT INTO effects (list, value) SELECT 'other', seq FROM seq_1_to_1000`, `UPDATE counts SET n = n + 1 WHERE k = 2`} {
		if _, err := other.ExecContext(t.Context(), text); err != nil {
			t.Fatal(err)
		}
	}
	done := make(chan error, 1)
	err = commit(t.Context(), s, f, func(ctx context.Context, tx *sqlsink.Tx) error {
		if _, err := tx.ExecContext(ctx, `UPDATE counts SET n = n + 1 WHERE k = 1`); err != nil {
			return err
		}
		go func() {
			_, err := other.ExecContext(t.Context(), `UPDATE counts SET n = n + 1 WHERE k = 1`)
			done <- err
		}()
		if rows, err := tx.QueryContext(ctx, `SELECT 1; UPDATE counts SET n = n + 1 WHERE k = 2`); err == nil {
			_ = rows.Close()
		}
		_ = write(ctx, tx, "after")
		return nil
	})
	if err := <-done; err != nil {
		t.Error(err)
	}
	if got, err := effects(t.Context(), db, "orders"); err != nil || len(got) > 0 {
		t.Errorf("effects %q, %v", got, err)
	}
	if !errors.Is(err, epoch.ErrTransient) {
		t.Errorf("%v, want %v", err, epoch.ErrTransient)
	}
}

// MyISAM and Aria do not roll back. The sink says so after a rollback, and the partition halts for good, because
// each retry would write again.
func TestAHandlerIsToldWhenATableWithoutTransactionsKeepsWhatWasRolledBack(t *testing.T) {
	t.Parallel()
	server := mariatest.Start(t)
	for _, engine := range []string{"MyISAM", "Aria"} {
		dsn := newDatabase(t, server)
		db := open(t, dsn)
		s := newSink(t, dsn, sqlsink.Options{})
		seeded(t, s)
		f, err := claim(t.Context(), s, 1)
		if err != nil {
			t.Fatal(err)
		}
		onPurpose := errors.New("on purpose")
		fails := func(ctx context.Context, tx *sqlsink.Tx) error { return errors.Join(write(ctx, tx, "v"), onPurpose) }
		if err := commit(t.Context(), s, f, fails); !errors.Is(err, onPurpose) || errors.Is(err, epoch.ErrTxEndedByHandler) {
			t.Errorf("in InnoDB: %v", err)
		}
		mustExec(t, db, `ALTER TABLE effects ENGINE = `+engine)
		if err := commit(t.Context(), s, f, fails); !errors.Is(err, onPurpose) || !errors.Is(err, epoch.ErrTxEndedByHandler) {
			t.Errorf("in %s: %v, want %v", engine, err, epoch.ErrTxEndedByHandler)
		}
		if _, err := claim(t.Context(), s, 2); err != nil {
			t.Fatal(err)
		}
		err = commit(t.Context(), s, f, func(ctx context.Context, tx *sqlsink.Tx) error { return write(ctx, tx, "stale") })
		if !errors.Is(err, epoch.ErrStale) || !errors.Is(err, epoch.ErrTxEndedByHandler) {
			t.Errorf("in %s under a stale claim: %v, want %v", engine, err, epoch.ErrTxEndedByHandler)
		}
	}
}

// The server closes the connection, which looks like a lost one, unless the driver knows its limit.
func TestAPayloadAboveMaxAllowedPacketIsTheMessagesFaultIfTheDriverAsksForTheLimit(t *testing.T) {
	t.Parallel()
	server := mariatest.Start(t, "--max-allowed-packet=1M")
	for _, parameters := range []string{"", "&interpolateParams=true", "&maxAllowedPacket=0", "&maxAllowedPacket=0&interpolateParams=true"} {
		dsn := newDatabase(t, server) + parameters
		mustExec(t, open(t, dsn), `ALTER TABLE effects MODIFY value LONGBLOB`)
		s := newSink(t, dsn, sqlsink.Options{})
		seeded(t, s)
		for _, n := range []int{1<<20 + 1, 3 << 20, 20 << 20} {
			f, err := claim(t.Context(), s, 1)
			if err != nil {
				t.Fatal(err)
			}
			err = commit(t.Context(), s, f, func(ctx context.Context, tx *sqlsink.Tx) error { return write(ctx, tx, strings.Repeat("x", n)) })
			known := strings.Contains(parameters, "maxAllowedPacket")
			if err == nil || known && (errors.Is(err, epoch.ErrInDoubt) || errors.Is(err, epoch.ErrTransient) || errors.Is(err, epoch.ErrUnhealthy)) {
				t.Errorf("%d bytes with %q: %v", n, parameters, err)
			}
		}
		if got, err := effects(t.Context(), open(t, dsn), "orders"); err != nil || len(got) > 0 {
			t.Errorf("%d effects, %v", len(got), err)
		}
	}
}

func TestAReadOnlyServerIsNoMessagesFault(t *testing.T) {
	t.Parallel()
	server := mariatest.Start(t)
	dsn := newDatabase(t, server)
	admin := open(t, server.DSN("mysql", ""))
	mustExec(t, admin, `CREATE USER app@'127.0.0.1'`, `GRANT SELECT, INSERT, UPDATE, DELETE ON *.* TO app@'127.0.0.1'`)
	dsn = strings.Replace(dsn, "root@", "app@", 1)
	s := newSink(t, dsn, sqlsink.Options{})
	seeded(t, s)
	f, err := claim(t.Context(), s, 1)
	if err != nil {
		t.Fatal(err)
	}
	mustExec(t, admin, `SET GLOBAL read_only = 1`)
	for _, err := range []error{
		func() error { _, err := claim(t.Context(), s, 2); return err }(),
		commit(t.Context(), s, f, func(ctx context.Context, tx *sqlsink.Tx) error { return write(ctx, tx, "v") }),
	} {
		if !errors.Is(err, epoch.ErrUnhealthy) {
			t.Errorf("%v, want %v", err, epoch.ErrUnhealthy)
		}
	}
}

// Names are bytes: case, accents, spaces at the end and quotes count, whatever the parameters of the data
// source name.
func TestNamesThatACollationTakesForTheSameAreSeveralPartitions(t *testing.T) {
	t.Parallel()
	server := mariatest.Start(t, "--character-set-server=latin1", "--collation-server=latin1_swedish_ci")
	for _, parameters := range []string{"", "&interpolateParams=true&multiStatements=true&parseTime=true&loc=Asia%2FTokyo", "&collation=utf8mb4_general_ci&time_zone=%27%2B05:30%27",
		"&sql_mode=%27STRICT_ALL_TABLES,PIPES_AS_CONCAT,IGNORE_SPACE,HIGH_NOT_PRECEDENCE,PAD_CHAR_TO_FULL_LENGTH,SIMULTANEOUS_ASSIGNMENT,NO_AUTO_VALUE_ON_ZERO%27"} {
		s := newSink(t, newDatabase(t, server)+parameters, sqlsink.Options{})
		names := []string{"orders", "Orders", "orders ", "orders\x00", "órders", "日本", "中国", "\U0001F600", "\xff\xfe", "\xfe\xff", `it's "x" \' ` + "`", `\`, "%", "_", strings.Repeat("é", 510), strings.Repeat("é", 509) + "e"}
		for i, name := range names {
			o := epoch.Origin{Partition: epoch.Partition{Group: name, Topic: name}, Log: "log", Source: "broker"}
			if err := s.Seed(t.Context(), []epoch.Start{{Origin: o}}); err != nil {
				t.Fatalf("%.20q: %v", name, err)
			}
			f, err := epoch.FenceOf(t.Context(), s, o.Partition)
			if err != nil || f.Epoch != 0 {
				t.Fatalf("%.20q: epoch %d, %v", name, f.Epoch, err)
			}
			if f, err = s.Claim(t.Context(), f, epoch.NewClaim(epoch.Lease{Origin: o, Generation: 1, Owner: name})); err != nil {
				t.Fatalf("%.20q: %v", name, err)
			}
			a := epoch.Advance{Partition: f.Partition, Claim: f.Claim, From: f.Next, To: f.Next + 1 + epoch.Offset(i)}
			err = s.Commit(t.Context(), []epoch.Advance{a}, epoch.TxOptions{}, func(ctx context.Context, tx *sqlsink.Tx) error {
				return s.DeadLetter(ctx, tx, epoch.Message{Partition: o.Partition, Key: []byte(name), Value: []byte(name)}, f.Epoch, errors.New(name))
			})
			if err != nil {
				t.Fatalf("%.20q: %v", name, err)
			}
		}
		for i, name := range names {
			f, err := epoch.FenceOf(t.Context(), s, epoch.Partition{Group: name, Topic: name})
			if err != nil || f.Next != 1+epoch.Offset(i) || f.Owner != name {
				t.Errorf("with %q, %.20q is at %d, of owner %.20q, %v", parameters, name, f.Next, f.Owner, err)
			}
		}
	}
}

// With innodb_rollback_on_timeout, a lock that is waited for too long ends the transaction, and what a handler wrote
// after it would be committed by itself. Without, the sink does not tell the two apart.
func TestALockThatIsWaitedForTooLongIsTransientAndNothingMoreIsSent(t *testing.T) {
	t.Parallel()
	for _, setting := range []string{"--innodb-rollback-on-timeout=0", "--innodb-rollback-on-timeout=1"} {
		dsn := newDatabase(t, mariatest.Start(t, setting))
		db := open(t, dsn)
		mustExec(t, db, `CREATE TABLE counts (k INT PRIMARY KEY, n INT)`, `INSERT INTO counts VALUES (1, 0)`)
		s := newSink(t, dsn, sqlsink.Options{LockTimeout: time.Second})
		seeded(t, s)
		f, err := claim(t.Context(), s, 1)
		if err != nil {
			t.Fatal(err)
		}
		for _, row := range []string{`SELECT n FROM counts FOR UPDATE`, `SELECT epoch FROM epochfence_fence FOR UPDATE`} {
			other, err := db.BeginTx(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := other.ExecContext(t.Context(), row); err != nil {
				t.Fatal(err)
			}
			err = commit(t.Context(), s, f, func(ctx context.Context, tx *sqlsink.Tx) error {
				if err := write(ctx, tx, "before"); err != nil {
					return err
				}
				_, _ = tx.ExecContext(ctx, `UPDATE counts SET n = n + 1 WHERE k = 1`)
				_ = write(ctx, tx, "after")
				return nil
			})
			if !errors.Is(err, epoch.ErrTransient) {
				t.Errorf("%s, %s: %v, want %v", setting, row, err, epoch.ErrTransient)
			}
			if err := other.Rollback(); err != nil {
				t.Fatal(err)
			}
			if got, err := effects(t.Context(), db, "orders"); err != nil || len(got) > 0 {
				t.Errorf("%s, %s: effects %q, %v", setting, row, got, err)
			}
		}
	}
}
