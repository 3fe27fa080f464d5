package sinktest

import (
	"context"
	"fmt"
	"time"

	"github.com/epochfence/epochfence/consumer"
)

// This file has the idioms of texts that are sent as they are: in all dialects, SQLite, PostgreSQL and
// MariaDB.

var statements = []Idiom{
	// The sink does not send statements that begin or end a transaction.
	{Name: "COMMIT", Wire: true, Want: Costs, Says: []string{"COMMIT"}, Places: true, Do: sends("COMMIT")},
	{Name: "COMMIT, and hides the error", Want: Costs, Says: []string{"COMMIT"}, Places: true, Do: hides("COMMIT")},
	{Name: "COMMIT and an error of its own", Want: Costs, Says: []string{"COMMIT", errOfHandler.Error()}, Do: func(c *Call) error {
		_ = hides("COMMIT")(c)
		return errOfHandler
	}},
	{Name: "ROLLBACK", Want: Costs, Says: []string{"ROLLBACK"}, Places: true, Do: sends("ROLLBACK")},
	{Name: "ROLLBACK, and continues", Want: Costs, Says: []string{"ROLLBACK"}, Places: true, Do: hides("ROLLBACK")},
	{Name: "BEGIN", Want: Costs, Says: []string{"BEGIN"}, Do: sends("BEGIN")},
	{Name: "END", Want: Costs, Says: []string{"END"}, Do: sends("END")},
	{Name: "commit; begin", Wire: true, Want: Costs, Says: []string{"commit; begin"}, Places: true, Do: sends("commit; begin")},
	{Name: "rollback; begin, and continues", Want: Costs, Says: []string{"rollback; begin"}, Do: hides("rollback; begin")},
	{Name: "COMMIT and BEGIN, and hides the errors", Want: Costs, Says: []string{"COMMIT"}, Do: hides("COMMIT", "BEGIN")},
	{Name: "a comment and COMMIT", Want: Costs, Says: []string{"COMMIT"}, Do: hides("/* done */ -- really\n COMMIT")},
	{Name: "an insert and COMMIT in one text", Wire: true, Want: Costs, Says: []string{"COMMIT"}, Do: func(c *Call) error { return c.Exec(c.Insert() + "; COMMIT") }},

	// Savepoints in SQL.
	{Name: "SAVEPOINT and RELEASE", Want: Alone, Places: true, Do: sends("SAVEPOINT mine", "RELEASE SAVEPOINT mine")},
	{Name: "SAVEPOINT, ROLLBACK TO, and writes", Want: Alone, Do: func(c *Call) error {
		return inTurn(c.exec("SAVEPOINT mine"), c.Write, c.exec("ROLLBACK TO SAVEPOINT mine"), c.Write)
	}},
	{Name: "SAVEPOINT that is left, and ROLLBACK TO by the next message", Want: Alone, ThenWant: Costs,
		Do: sends("SAVEPOINT mine"), Then: sends("ROLLBACK TO SAVEPOINT mine")},
	{Name: "everybody has a SAVEPOINT of the same name", Everybody: true, Want: Alone, Do: sends("SAVEPOINT mine")},
	{Name: "ROLLBACK TO a name that a sink might have", Want: Costs, Do: sends("ROLLBACK TO SAVEPOINT epochfence_handler")},
	{Name: "ROLLBACK TO epochfence_1, and hides the error", Want: Costs, Do: func(c *Call) error {
		_ = c.Write()
		return c.Exec("ROLLBACK TO SAVEPOINT epochfence_1")
	}},
	{Name: "RELEASE of a name that a sink might have", Want: Costs, Do: sends("RELEASE SAVEPOINT epochfence_1")},

	{Name: "a duplicate key, and returns the error", Wire: true, Want: Costs, Says: []string{"idiom_keys"}, Do: sends("insert into idiom_keys values ('always there')")},
	{Name: "a text that is no SQL", Wire: true, Want: Costs, Says: []string{"syntax"}, Do: sends("insert in to effects")},
	{Name: "a table that is not there", Wire: true, Want: Halts, Says: []string{"nowhere"}, Do: sends("insert into nowhere values (1)")},
	{Name: "a table that is not there, in Permanent", Want: Costs, Says: []string{"nowhere"}, Answers: true, Do: func(c *Call) error {
		return permanently(sends("insert into nowhere values (1)")(c))
	}},
	{Name: "too few arguments", Wire: true, Want: Costs, Do: sendsWith("insert into effects (list, value) values ($1, $2)", "one")},
	{Name: "an argument of no type", Wire: true, Want: Costs, Do: sendsWith("insert into effects (list, value) values ('x', $1)", make(chan int))},

	// Another connection, which waits for this one.
	{Name: "waits for itself on another connection", Answers: true, Want: Costs, Says: []string{"ock"}, Do: func(c *Call) error { // a lock, or a Lock wait
		return inTurn(c.Write,
			c.exec("update idiom_counts set n = n + 1 where k = 'one'"),
			func() error { return c.Aside("update idiom_counts set n = n + 1 where k = 'one'") })
	}},
	{Name: "reads on another connection", Answers: true, Want: Applied, Do: func(c *Call) error {
		return inTurn(c.Write, func() error { return c.Aside("select count(*) from effects") })
	}},
}

// SQLite is SQLite's dialect.
var SQLite = &Dialect{Name: "SQLite", idioms: sqlite, Setup: `
	CREATE TABLE idiom_keys (k TEXT PRIMARY KEY);
	INSERT INTO idiom_keys VALUES ('always there');
	CREATE TABLE idiom_children (k TEXT REFERENCES idiom_keys DEFERRABLE INITIALLY DEFERRED);
	CREATE TABLE idiom_counts (k TEXT PRIMARY KEY, n INT);
	INSERT INTO idiom_counts VALUES ('one', 0);
	CREATE TABLE idiom_ends (k TEXT);
	CREATE TRIGGER idiom_end AFTER INSERT ON idiom_ends BEGIN SELECT RAISE(ROLLBACK, 'ended by a trigger'); END;
	`}

var sqlite = []Idiom{
	{Name: "INSERT OR ROLLBACK", Want: Costs, Says: []string{"constraint failed"}, Do: sends("INSERT OR ROLLBACK INTO idiom_keys VALUES ('always there')")},
	{Name: "INSERT OR ROLLBACK, and continues", Want: Costs, Says: []string{"OR ROLLBACK"}, Do: hides("INSERT OR ROLLBACK INTO idiom_keys VALUES ('always there')")},
	{Name: "INSERT OR IGNORE", Want: Applied, Do: sends("INSERT OR IGNORE INTO idiom_keys VALUES ('always there')")},
	{Name: "a trigger that raises ROLLBACK", Want: Costs, Says: []string{"ended by a trigger"}, Do: sends("INSERT INTO idiom_ends VALUES ('x')")},
	{Name: "a trigger that raises ROLLBACK, and continues", Want: Costs, Do: hides("INSERT INTO idiom_ends VALUES ('x')")},

	{Name: "everybody: CREATE TEMP TABLE", Everybody: true, Want: Alone, Do: sends("CREATE TEMP TABLE mine (n)")},
	{Name: "a temp table with the name of the fence", Want: Alone, Places: true, Do: sends("CREATE TEMP TABLE epochfence_fence AS SELECT * FROM main.epochfence_fence")},
	{Name: "a temp table with the name of the effects", Want: Alone, Do: sends("CREATE TEMP TABLE effects (id, list, value)")},
	{Name: "a temp view with the name of the fence", Want: Alone, Do: sends("CREATE TEMP VIEW epochfence_fence AS SELECT 1")},
	{Name: "a temp trigger that swallows writes", Want: Alone, Do: sends("CREATE TEMP TRIGGER swallow BEFORE INSERT ON main.effects BEGIN SELECT RAISE(IGNORE); END")},
	{Name: "everybody: ATTACH", Everybody: true, Want: Alone, Do: sends("ATTACH ':memory:' AS mine")},
	{Name: "PRAGMA query_only", Want: Costs, Do: sends("PRAGMA query_only = 1")},
	{Name: "PRAGMA defer_foreign_keys", Want: Alone, Do: sends("PRAGMA defer_foreign_keys = 1")},
	{Name: "PRAGMA case_sensitive_like", Want: Alone, Do: sends("PRAGMA case_sensitive_like = 1")},
	{Name: "PRAGMA recursive_triggers", Want: Alone, Do: sends("PRAGMA recursive_triggers = 1")},
	{Name: "PRAGMA ignore_check_constraints", Want: Alone, Do: sends("PRAGMA ignore_check_constraints = 1")},
	{Name: "replaces the claims in the fences", Want: Costs, Do: sends("UPDATE epochfence_fence SET claim_id = randomblob(16)")},
	{Name: "VACUUM", Want: Costs, Says: []string{"VACUUM"}, Do: sends("VACUUM")},

	{Name: "a statement that fails, and hides the error", Want: Applied, Do: failsAndWrites},
	{Name: "a NUL byte in an argument", Want: Applied, Do: sendsWith("INSERT INTO effects (list, value) VALUES ('x', $1)", "a\x00b")},
	{Name: "too many arguments", Want: Applied, Do: sendsWith("INSERT INTO effects (list, value) VALUES ($1, 'y')", "x", "z")},

	{Name: "rows that are left open", Answers: true, Want: Applied, Do: queriesAndWrites("SELECT value FROM effects", leftOpen)},
	{Name: "rows that are read after the return", Answers: true, Want: Applied, Do: queriesAndWrites("SELECT k FROM idiom_keys", readLater)},
}

func failsAndWrites(c *Call) error {
	_ = c.Exec("INSERT INTO idiom_keys VALUES ('always there')")
	return c.Write()
}

func permanently(err error) error { return consumer.Permanent(err) }

// PostgreSQL is PostgreSQL's dialect. Setup needs a role that may create tables and functions.
// Everybody may use these.
var PostgreSQL = &Dialect{Name: "PostgreSQL", idioms: postgres, Setup: `
	create table idiom_keys (k text primary key);
	insert into idiom_keys values ('always there');
	create table idiom_children (k text references idiom_keys deferrable initially deferred);
	create table idiom_counts (k text primary key, n int);
	insert into idiom_counts values ('one', 0);
	create table idiom_codes (code text);
	create function idiom_raise() returns trigger language plpgsql as
		$$ begin raise exception 'raised by a trigger' using errcode = new.code; end $$;
	create trigger raises before insert on idiom_codes for each row execute function idiom_raise();
	create table idiom_ends (k text);
	create function idiom_end() returns trigger language plpgsql as
		$$ begin perform pg_terminate_backend(pg_backend_pid()); return null; end $$;
	create constraint trigger ends after insert on idiom_ends deferrable initially deferred for each row execute function idiom_end();
	create function idiom_leave_path() returns text language sql as $$ select set_config('search_path', 'pg_catalog', false) $$;
	create function idiom_leave_local_path() returns text language sql as $$ select set_config('search_path', 'pg_catalog', true) $$;
	create procedure idiom_commit() language plpgsql as $$ begin commit; end $$;
	grant select, insert, update, delete on idiom_keys, idiom_children, idiom_counts, idiom_codes, idiom_ends to public;
	`}

var postgres = []Idiom{
	{Name: "START TRANSACTION", Want: Costs, Says: []string{"START TRANSACTION"}, Do: sends("START TRANSACTION")},
	{Name: "ABORT", Want: Costs, Says: []string{"ABORT"}, Do: hides("ABORT")},
	{Name: "commit and chain", Want: Costs, Says: []string{"commit and chain"}, Do: hides("commit and chain")},
	{Name: "PREPARE TRANSACTION", Wire: true, Want: Costs, Says: []string{"PREPARE TRANSACTION"}, Do: hides("PREPARE TRANSACTION 'idiom'")},
	{Name: "COMMIT PREPARED", Want: Costs, Says: []string{"COMMIT PREPARED"}, Do: hides("COMMIT PREPARED 'idiom'")},
	{Name: "commit in a DO block", Want: Costs, Says: []string{"2D000"}, Do: sends("do $$ begin commit; end $$")},
	{Name: "commit in a procedure", Want: Costs, Says: []string{"2D000"}, Do: sends("call idiom_commit()")},

	// The session and the transaction.
	{Name: "SET LOCAL statement_timeout", Want: Alone, Places: true, Do: sends("set local statement_timeout = '10s'")},
	{Name: "SET LOCAL search_path", Wire: true, Want: Alone, Places: true, Do: sends("set local search_path = pg_catalog")},
	{Name: "SET search_path", Wire: true, Want: Alone, Places: true, Do: sends("set search_path = pg_catalog")},
	{Name: "SET application_name", Want: Alone, Do: sends("set application_name = 'idiom'")},
	{Name: "set_config(…, true)", Wire: true, Want: Alone, Do: sends("select set_config('search_path', 'pg_catalog', true)")},
	{Name: "set_config(…, false)", Wire: true, Want: Alone, Places: true, Do: sends("select set_config('search_path', 'pg_catalog', false)")},
	{Name: "SET LOCAL ROLE", Want: Alone, Do: sends("set local role none")},
	{Name: "SET ROLE", Want: Alone, Do: sends("set role none")},
	{Name: "SET TRANSACTION READ ONLY", Wire: true, Want: Costs, Do: sends("set transaction read only")},
	{Name: "SET SESSION CHARACTERISTICS", Want: Alone, Do: sends("set session characteristics as transaction read only")},
	{Name: "SET LOCAL client_encoding", Wire: true, Want: Costs, Do: sends("set local client_encoding = 'LATIN1'")},
	{Name: "SET CONSTRAINTS ALL IMMEDIATE", Want: Alone, Do: sends("set constraints all immediate")},
	{Name: "RESET ALL", Wire: true, Want: Alone, Do: sends("reset all")},
	{Name: "DEALLOCATE ALL", Wire: true, Want: Alone, Do: sends("deallocate all")},
	{Name: "DISCARD ALL", Want: Costs, Says: []string{"DISCARD ALL"}, Do: sends("DISCARD ALL")},
	{Name: "DISCARD TEMP", Wire: true, Want: Alone, Do: sends("discard temp")},
	{Name: "LISTEN and NOTIFY", Want: Alone, Do: sends("listen news", "notify news, 'x'")},
	{Name: "NOTIFY", Want: Applied, Do: sends("notify news, 'x'")},
	{Name: "everybody PREPAREs the same name", Wire: true, Everybody: true, Want: Alone, Do: sends("prepare mine as select 1")},
	{Name: "everybody DECLAREs a cursor of the same name", Everybody: true, Want: Alone, Do: sends("declare mine cursor for select 1")},
	{Name: "DECLARE … WITH HOLD by everybody", Everybody: true, Want: Alone, Do: sends("declare mine cursor with hold for select 1")},
	{Name: "a DO block that leaves a setting", Want: Alone, Do: sends("do $$ begin perform set_config('search_path', 'pg_catalog', false); end $$")},
	{Name: "a function that leaves a setting", Wire: true, Want: Alone, Do: sends("select idiom_leave_path()")},
	{Name: "a function that leaves a setting in the transaction", Want: Alone, Do: sends("select idiom_leave_local_path()")},

	// Temporary tables.
	{Name: "everybody: CREATE TEMP TABLE … ON COMMIT DROP", Everybody: true, Want: Alone, Do: sends("create temp table mine (n int) on commit drop")},
	{Name: "everybody: CREATE TEMP TABLE", Everybody: true, Want: Alone, Do: sends("create temp table mine (n int)")},
	{Name: "everybody: SELECT INTO TEMP", Everybody: true, Want: Alone, Do: sends("select 1 as n into temp mine")},
	{Name: "everybody: CREATE TABLE pg_temp.t", Everybody: true, Want: Alone, Do: sends("create table pg_temp.mine (n int)")},
	{Name: "a temp table with the name of the effects", Wire: true, Want: Alone, Do: sends("create temp table effects (list text, value text)")},
	{Name: "a temp table with the name of the fence", Want: Alone, Do: sends("create temp table epochfence_fence (like pg_class)", "create temp table fence (like pg_class)")},
	{Name: "functions and operators of pg_temp", Wire: true, Want: Alone, Do: sends(
		"create function pg_temp.epochfence_advance() returns int language sql as 'select 1'",
		"create function pg_temp.nothing(text, text) returns bool language sql as 'select true'",
		"create operator pg_temp.= (function = pg_temp.nothing, leftarg = text, rightarg = text)")},

	// Locks.
	{Name: "pg_advisory_xact_lock", Want: Applied, Do: sends("select pg_advisory_xact_lock(1)")},
	{Name: "everybody: pg_advisory_lock", Everybody: true, Want: Alone, Do: sends("select pg_advisory_lock(2)")},
	{Name: "LOCK TABLE", Want: Applied, Do: sends("lock table idiom_keys in row share mode")},
	{Name: "SELECT FOR UPDATE", Want: Applied, Do: sends("select from idiom_counts where k = 'two' for update")},

	// Errors, also errors that look like another party's.
	{Name: "a statement that fails, and hides the error", Wire: true, Want: Costs, Says: []string{"22012"}, Do: hides("select 1/0")},
	{Name: "a statement that fails, within SAVEPOINT", Answers: true, Want: Alone, Do: func(c *Call) error {
		return inTurn(c.exec("savepoint mine"), func() error { _ = c.Exec("select 1/0"); return nil }, c.exec("rollback to savepoint mine"), c.Write)
	}},
	{Name: "a constraint that is checked at the commit", Want: Costs, Do: sends("insert into idiom_children values ('nobody')")},
	raises("42P01"), raises("42501"), raises("3F000"), raises("42883"), raises("25006"), raises("08P01"),
	raises("XF001"), raises("XF002"), raises("XF003"), raises("XF004"),
	{Name: "a NUL byte in an argument", Wire: true, Want: Costs, Do: sendsWith("insert into effects (list, value) values ('x', $1)", "a\x00b")},
	{Name: "a NUL byte in the text", Wire: true, Want: Costs, Do: sends("insert into effects (list, value) values ('x', 'a\x00b')")},
	{Name: "bytes that are not UTF-8 in an argument", Wire: true, Want: Costs, Says: []string{"22021"}, Do: sendsWith("insert into effects (list, value) values ('x', $1)", "\xff")},
	{Name: "too many arguments", Wire: true, Want: Costs, Do: sendsWith("insert into effects (list, value) values ($1, 'y')", "x", "z")},
	{Name: "a text of two statements with an argument", Wire: true, Want: Costs, But: map[string]Outcome{"simple_protocol": Applied}, Do: sendsWith("select 1; select $1::text", "x")},
	{Name: "SET LOCAL statement_timeout, and runs into it", Want: Costs, Says: []string{"57014"}, Do: sends("set local statement_timeout = '10ms'", "select pg_sleep(60)")},
	{Name: "COPY FROM STDIN as a text", Wire: true, Want: Costs, Says: []string{"COPY effects"}, Do: sends("COPY effects (list, value) FROM STDIN")},
	{Name: "COPY FROM STDIN as a text, and hides the error", Want: Costs, Says: []string{"COPY effects"}, Do: hides("COPY effects (list, value) FROM STDIN")},
	{Name: "COPY TO STDOUT as a text", Wire: true, Want: Costs, Says: []string{"COPY ("}, Do: sends("COPY (select 1) TO STDOUT")},

	// The handler's own connection.
	{Name: "cancels its own context during a statement", Wire: true, Answers: true, Want: Costs, Do: func(c *Call) error {
		return inTurn(c.Write, func() error { return c.sleepsBriefly() })
	}},
	{Name: "cancels its own context during a statement, and hides the error", Wire: true, Answers: true, Want: Costs, Do: func(c *Call) error {
		_ = c.Write()
		_ = c.sleepsBriefly()
		return nil
	}},
	{Name: "pg_terminate_backend of itself", Wire: true, Want: Costs, Do: sends("select pg_terminate_backend(pg_backend_pid())")},
	{Name: "pg_terminate_backend of itself, and hides the error", Want: Costs, Do: hides("select pg_terminate_backend(pg_backend_pid())")},
	{Name: "pg_terminate_backend of itself in a deferred trigger", Wire: true, Want: Costs, Do: sends("insert into idiom_ends values ('x')")},
	{Name: "pg_cancel_backend of itself", Wire: true, Want: Costs, Says: []string{"57014"}, Do: sends("select pg_cancel_backend(pg_backend_pid()), pg_sleep(60)")},

	// Results.
	{Name: "rows that are read and closed", Answers: true, Want: Applied, Do: queriesAndWrites("select generate_series(1, 3)", func(_ *Call, rows Rows) {
		for rows.Next() {
		}
		rows.Close()
	})},
	{Name: "rows that are closed half read", Answers: true, Want: Applied, Do: queriesAndWrites("select generate_series(1, 3)", closedHalfRead)},
	{Name: "rows that are left open", Wire: true, Answers: true, Want: Costs, Says: []string{"left a result open"}, Do: queries(leftOpen)},
	{Name: "rows that are left open half read", Wire: true, Answers: true, Want: Costs, Says: []string{"left a result open"},
		Do: queries(func(_ *Call, rows Rows) { rows.Next() })},
	{Name: "rows that are read after the return", Wire: true, Answers: true, Want: Costs, Says: []string{"left a result open"}, Do: queries(readLater)},
}

// queriesAndWrites returns a handler that uses the rows of a query, and then writes its effect.
func queriesAndWrites(query string, use func(c *Call, rows Rows)) func(c *Call) error {
	return func(c *Call) error {
		rows, err := c.Query(query)
		if err != nil {
			return err
		}
		use(c, rows)
		return c.Write()
	}
}

// queries returns a handler that writes its effect, and then uses rows that do not fit into one packet.
func queries(use func(c *Call, rows Rows)) func(c *Call) error {
	return func(c *Call) error {
		_ = c.Write()
		rows, err := c.Query("select generate_series(1, 5000)")
		if err == nil {
			use(c, rows)
		}
		return err
	}
}

func leftOpen(*Call, Rows) {}

func closedHalfRead(_ *Call, rows Rows) {
	rows.Next()
	rows.Close()
}

func readLater(c *Call, rows Rows) {
	c.Go(func() {
		<-c.Returned
		closedHalfRead(c, rows)
	})
}

// raises is a trigger of the user that raises a code of the server or of a sink.
func raises(code string) Idiom {
	return Idiom{Name: "a trigger that raises " + code, Wire: code == "42P01", Want: Costs, Says: []string{"raised by a trigger", code}, Do: sends("insert into idiom_codes values ('" + code + "')")}
}

// sleepsBriefly cancels a statement while the server executes it.
func (c *Call) sleepsBriefly() error {
	ctx, cancel := context.WithCancel(c.Ctx)
	seen := make(chan struct{})
	go func() {
		defer close(seen)
		defer cancel()
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for c.Aside("select 1 / count(*) from pg_stat_activity where strpos(query, '"+c.Key()+"') > 0 and state = 'active' and pid <> pg_backend_pid()") != nil && ctx.Err() == nil {
			<-tick.C
		}
	}()
	err := c.ExecThrough(ctx, "select pg_sleep(60) /* "+c.Key()+" */")
	cancel()
	<-seen
	return err
}

// MariaDB is MariaDB's dialect. The mode's Exec replaces $1 and $2 by ?, and Setup has statements that end
// with a semicolon and a line break.
var MariaDB = &Dialect{Name: "MariaDB", idioms: mariadb, Setup: `
CREATE TABLE idiom_keys (k VARCHAR(100) NOT NULL, UNIQUE KEY idiom_keys (k));
INSERT INTO idiom_keys VALUES ('always there');
CREATE TABLE idiom_counts (k VARCHAR(100) PRIMARY KEY, n INT NOT NULL);
INSERT INTO idiom_counts VALUES ('one', 0), ('two', 0);
CREATE TABLE idiom_ends (k VARCHAR(100));
CREATE TRIGGER idiom_end BEFORE INSERT ON idiom_ends FOR EACH ROW SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'raised by a trigger';
CREATE PROCEDURE idiom_counts() UPDATE idiom_counts SET n = n + 1 WHERE k = 'two';
CREATE PROCEDURE idiom_reads() SELECT k FROM idiom_keys;
CREATE PROCEDURE idiom_commits() COMMIT
`}

var mariadb = []Idiom{
	// Statements that commit.
	{Name: "START TRANSACTION", Want: Costs, Says: []string{"START TRANSACTION"}, Do: hides("START TRANSACTION")},
	{Name: "SET autocommit", Want: Costs, Says: []string{"SET autocommit"}, Do: hides("SET autocommit = 1")},
	{Name: "XA", Want: Costs, Says: []string{"XA START"}, Do: hides("XA START 'mine'")},
	{Name: "CREATE TABLE", Places: true, Want: Costs, Says: []string{"CREATE TABLE"}, Do: sends("CREATE TABLE mine (n INT)")},
	{Name: "CREATE TABLE, and hides the error", Want: Costs, Says: []string{"CREATE TABLE"}, Do: hides("CREATE TABLE mine (n INT)")},
	{Name: "TRUNCATE", Want: Costs, Says: []string{"TRUNCATE"}, Do: hides("TRUNCATE idiom_ends")},
	{Name: "ANALYZE TABLE", Want: Costs, Says: []string{"ANALYZE"}, Do: hides("ANALYZE TABLE idiom_ends")},
	{Name: "LOCK TABLES", Want: Costs, Says: []string{"LOCK TABLES"}, Do: hides("LOCK TABLES idiom_ends WRITE")},
	{Name: "COMMIT in a comment that is run", Want: Costs, Says: []string{"50000 COMMIT"}, Do: hides("/*!50000 COMMIT */")},
	{Name: "a procedure that commits", Want: Halts, Says: []string{"CALL idiom_commits"}, Do: func(c *Call) error { return c.Exec("CALL idiom_commits()") }},
	{Name: "EXECUTE IMMEDIATE of COMMIT, and hides the error", Want: Halts, Says: []string{"EXECUTE IMMEDIATE"}, Do: func(c *Call) error {
		_ = c.Exec("EXECUTE IMMEDIATE 'COMMIT'")
		return c.Write() // is not sent
	}},
	{Name: "SET STATEMENT … FOR COMMIT", Want: Halts, Says: []string{"SET STATEMENT"}, Do: func(c *Call) error {
		return c.Exec("SET STATEMENT max_statement_time = 10 FOR COMMIT")
	}},

	// The session and the transaction.
	{Name: "SET sql_mode", Want: Alone, Places: true, Do: sends("SET sql_mode = ''")},
	{Name: "SET NAMES", Want: Alone, Do: sends("SET NAMES latin1")},
	{Name: "SET SESSION TRANSACTION READ ONLY", Want: Alone, Do: sends("SET SESSION TRANSACTION READ ONLY")},
	{Name: "SET TRANSACTION READ ONLY", Want: Costs, Do: sends("SET TRANSACTION READ ONLY")},
	{Name: "SELECT @n := 1", Want: Alone, Do: sends("SELECT @n := 1")},
	{Name: "USE", Want: Alone, Places: true, Do: sends("USE information_schema")},
	{Name: "everybody: GET_LOCK", Everybody: true, Want: Alone, Do: sends("SELECT GET_LOCK('mine', 10)")},
	{Name: "everybody PREPAREs the same name", Everybody: true, Want: Alone, Do: sends("PREPARE mine FROM 'SELECT 1'")},
	{Name: "CALL", Want: Alone, Do: sends("CALL idiom_counts()")},
	{Name: "CALL that returns rows", Answers: true, Want: Alone, Do: queriesAndWrites("CALL idiom_reads()", closedHalfRead)},
	{Name: "SET STATEMENT max_statement_time, and runs into it", Want: Costs, Says: []string{"max_statement_time"}, Do: sends("SET STATEMENT max_statement_time = 0.05 FOR SELECT SLEEP(60)")},
	{Name: "KILL of itself", Want: Costs, Do: sends("KILL CONNECTION_ID()")},

	// Temporary tables.
	{Name: "everybody: CREATE TEMPORARY TABLE", Everybody: true, Want: Alone, Do: sends("CREATE TEMPORARY TABLE mine (n INT)")},
	{Name: "a temporary table with the name of the fence", Want: Alone, Places: true, Do: sends("CREATE TEMPORARY TABLE epochfence_fence AS SELECT * FROM epochfence_fence")},
	{Name: "a temporary table with the name of the effects", Want: Alone, Do: sends("CREATE TEMPORARY TABLE effects (id INT, list TEXT, value TEXT)")},

	{Name: "replaces the claims in the fences", Want: Costs, Do: func(c *Call) error {
		return c.Exec(fmt.Sprintf("UPDATE epochfence_fence SET claim_id = UNHEX(MD5(RAND())) WHERE topic = '%s'", c.Message.Partition.Topic))
	}},
	{Name: "INSERT IGNORE, REPLACE and ON DUPLICATE KEY UPDATE", Want: Applied, Do: sends("INSERT IGNORE INTO idiom_keys VALUES ('always there')",
		"REPLACE INTO idiom_keys VALUES ('always there')", "INSERT INTO idiom_counts VALUES ('two', 0) ON DUPLICATE KEY UPDATE n = n + 1")},
	{Name: "SELECT FOR UPDATE", Want: Applied, Do: sends("SELECT n FROM idiom_counts WHERE k = 'two' FOR UPDATE")},
	{Name: "a statement that fails, and hides the error", Want: Applied, Do: failsAndWrites},
	{Name: "a trigger that raises an error", Want: Costs, Says: []string{"raised by a trigger"}, Do: sends("INSERT INTO idiom_ends VALUES ('x')")},
	{Name: "a NUL byte in an argument", Want: Applied, Do: sendsWith("INSERT INTO effects (list, value) VALUES ('x', $1)", "a\x00b")},
	{Name: "too many arguments", Want: Costs, Do: sendsWith("INSERT INTO effects (list, value) VALUES ($1, 'y')", "x", "z")},
	{Name: "a statement while rows are open", Answers: true, Want: Applied, Do: func(c *Call) error {
		rows, err := c.Query("SELECT k FROM idiom_keys")
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			if err := c.Write(); err != nil {
				return err
			}
		}
		return nil
	}},
	{Name: "rows that are left open", Answers: true, Want: Applied, Do: queriesAndWrites("SELECT value FROM effects", leftOpen)},
}
