package pgsink_test

import (
	"context"
	"errors"
	"time"

	"github.com/epochfence/epochfence/sinks/sinktest"
)

// postgreSQL is PostgreSQL's dialect. Setup needs a role that may create tables and functions.
// Everybody may use these.
var postgreSQL = &sinktest.Dialect{Name: "PostgreSQL", Idioms: ofPostgreSQL, Setup: `
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

var ofPostgreSQL = []sinktest.Idiom{
	{Name: "START TRANSACTION", Want: sinktest.Costs, Says: []string{"START TRANSACTION"}, Do: sinktest.Sends("START TRANSACTION")},
	{Name: "ABORT", Want: sinktest.Costs, Says: []string{"ABORT"}, Do: sinktest.Hides("ABORT")},
	{Name: "commit and chain", Want: sinktest.Costs, Says: []string{"commit and chain"}, Do: sinktest.Hides("commit and chain")},
	{Name: "PREPARE TRANSACTION", Wire: true, Want: sinktest.Costs, Says: []string{"PREPARE TRANSACTION"}, Do: sinktest.Hides("PREPARE TRANSACTION 'idiom'")},
	{Name: "COMMIT PREPARED", Want: sinktest.Costs, Says: []string{"COMMIT PREPARED"}, Do: sinktest.Hides("COMMIT PREPARED 'idiom'")},
	{Name: "commit in a DO block", Want: sinktest.Costs, Says: []string{"2D000"}, Do: sinktest.Sends("do $$ begin commit; end $$")},
	{Name: "commit in a procedure", Want: sinktest.Costs, Says: []string{"2D000"}, Do: sinktest.Sends("call idiom_commit()")},

	// The session and the transaction.
	{Name: "SET LOCAL statement_timeout", Want: sinktest.Alone, Places: true, Do: sinktest.Sends("set local statement_timeout = '10s'")},
	{Name: "SET LOCAL search_path", Wire: true, Want: sinktest.Alone, Places: true, Do: sinktest.Sends("set local search_path = pg_catalog")},
	{Name: "SET search_path", Wire: true, Want: sinktest.Alone, Places: true, Do: sinktest.Sends("set search_path = pg_catalog")},
	{Name: "SET application_name", Want: sinktest.Alone, Do: sinktest.Sends("set application_name = 'idiom'")},
	{Name: "set_config(…, true)", Wire: true, Want: sinktest.Alone, Do: sinktest.Sends("select set_config('search_path', 'pg_catalog', true)")},
	{Name: "set_config(…, false)", Wire: true, Want: sinktest.Alone, Places: true, Do: sinktest.Sends("select set_config('search_path', 'pg_catalog', false)")},
	{Name: "SET LOCAL ROLE", Want: sinktest.Alone, Do: sinktest.Sends("set local role none")},
	{Name: "SET ROLE", Want: sinktest.Alone, Do: sinktest.Sends("set role none")},
	{Name: "SET TRANSACTION READ ONLY", Wire: true, Want: sinktest.Costs, Do: sinktest.Sends("set transaction read only")},
	{Name: "SET SESSION CHARACTERISTICS", Want: sinktest.Alone, Do: sinktest.Sends("set session characteristics as transaction read only")},
	{Name: "SET LOCAL client_encoding", Wire: true, Want: sinktest.Costs, Do: sinktest.Sends("set local client_encoding = 'LATIN1'")},
	{Name: "SET CONSTRAINTS ALL IMMEDIATE", Want: sinktest.Alone, Do: sinktest.Sends("set constraints all immediate")},
	{Name: "RESET ALL", Wire: true, Want: sinktest.Alone, Do: sinktest.Sends("reset all")},
	{Name: "DEALLOCATE ALL", Wire: true, Want: sinktest.Alone, Do: sinktest.Sends("deallocate all")},
	{Name: "DISCARD ALL", Want: sinktest.Costs, Says: []string{"DISCARD ALL"}, Do: sinktest.Sends("DISCARD ALL")},
	{Name: "DISCARD TEMP", Wire: true, Want: sinktest.Alone, Do: sinktest.Sends("discard temp")},
	{Name: "LISTEN and NOTIFY", Want: sinktest.Alone, Do: sinktest.Sends("listen news", "notify news, 'x'")},
	{Name: "NOTIFY", Want: sinktest.Applied, Do: sinktest.Sends("notify news, 'x'")},
	{Name: "everybody PREPAREs the same name", Wire: true, Everybody: true, Want: sinktest.Alone, Do: sinktest.Sends("prepare mine as select 1")},
	{Name: "everybody DECLAREs a cursor of the same name", Everybody: true, Want: sinktest.Alone, Do: sinktest.Sends("declare mine cursor for select 1")},
	{Name: "DECLARE … WITH HOLD by everybody", Everybody: true, Want: sinktest.Alone, Do: sinktest.Sends("declare mine cursor with hold for select 1")},
	{Name: "a DO block that leaves a setting", Want: sinktest.Alone, Do: sinktest.Sends("do $$ begin perform set_config('search_path', 'pg_catalog', false); end $$")},
	{Name: "a function that leaves a setting", Wire: true, Want: sinktest.Alone, Do: sinktest.Sends("select idiom_leave_path()")},
	{Name: "a function that leaves a setting in the transaction", Want: sinktest.Alone, Do: sinktest.Sends("select idiom_leave_local_path()")},

	// Temporary tables.
	{Name: "everybody: CREATE TEMP TABLE … ON COMMIT DROP", Everybody: true, Want: sinktest.Alone, Do: sinktest.Sends("create temp table mine (n int) on commit drop")},
	{Name: "everybody: CREATE TEMP TABLE", Everybody: true, Want: sinktest.Alone, Do: sinktest.Sends("create temp table mine (n int)")},
	{Name: "everybody: SELECT INTO TEMP", Everybody: true, Want: sinktest.Alone, Do: sinktest.Sends("select 1 as n into temp mine")},
	{Name: "everybody: CREATE TABLE pg_temp.t", Everybody: true, Want: sinktest.Alone, Do: sinktest.Sends("create table pg_temp.mine (n int)")},
	{Name: "a temp table with the name of the effects", Wire: true, Want: sinktest.Alone, Do: sinktest.Sends("create temp table effects (list text, value text)")},
	{Name: "a temp table with the name of the fence", Want: sinktest.Alone, Do: sinktest.Sends("create temp table epochfence_fence (like pg_class)", "create temp table fence (like pg_class)")},
	{Name: "functions and operators of pg_temp", Wire: true, Want: sinktest.Alone, Do: sinktest.Sends(
		"create function pg_temp.epochfence_advance() returns int language sql as 'select 1'",
		"create function pg_temp.nothing(text, text) returns bool language sql as 'select true'",
		"create operator pg_temp.= (function = pg_temp.nothing, leftarg = text, rightarg = text)")},

	// Locks.
	{Name: "pg_advisory_xact_lock", Want: sinktest.Applied, Do: sinktest.Sends("select pg_advisory_xact_lock(1)")},
	{Name: "everybody: pg_advisory_lock", Everybody: true, Want: sinktest.Alone, Do: sinktest.Sends("select pg_advisory_lock(2)")},
	{Name: "LOCK TABLE", Want: sinktest.Applied, Do: sinktest.Sends("lock table idiom_keys in row share mode")},
	{Name: "SELECT FOR UPDATE", Want: sinktest.Applied, Do: sinktest.Sends("select from idiom_counts where k = 'two' for update")},

	// Errors, also errors that look like another party's.
	{Name: "a statement that fails, and hides the error", Wire: true, Want: sinktest.Costs, Says: []string{"22012"}, Do: sinktest.Hides("select 1/0")},
	{Name: "a statement that fails, within SAVEPOINT", Answers: true, Want: sinktest.Alone, Do: func(c *sinktest.Call) error {
		if err := c.Exec("savepoint mine"); err != nil {
			return err
		}
		_ = c.Exec("select 1/0")
		return errors.Join(c.Exec("rollback to savepoint mine"), c.Write())
	}},
	{Name: "a constraint that is checked at the commit", Want: sinktest.Costs, Do: sinktest.Sends("insert into idiom_children values ('nobody')")},
	raises("42P01"), raises("42501"), raises("3F000"), raises("42883"), raises("25006"), raises("08P01"),
	raises("XF001"), raises("XF002"), raises("XF003"), raises("XF004"),
	{Name: "a NUL byte in an argument", Wire: true, Want: sinktest.Costs, Do: sinktest.SendsWith("insert into effects (list, value) values ('x', $1)", "a\x00b")},
	{Name: "a NUL byte in the text", Wire: true, Want: sinktest.Costs, Do: sinktest.Sends("insert into effects (list, value) values ('x', 'a\x00b')")},
	{Name: "bytes that are not UTF-8 in an argument", Wire: true, Want: sinktest.Costs, Says: []string{"22021"}, Do: sinktest.SendsWith("insert into effects (list, value) values ('x', $1)", "\xff")},
	{Name: "too many arguments", Wire: true, Want: sinktest.Costs, Do: sinktest.SendsWith("insert into effects (list, value) values ($1, 'y')", "x", "z")},
	{Name: "a text of two statements with an argument", Wire: true, Want: sinktest.Costs, But: map[string]sinktest.Outcome{"simple_protocol": sinktest.Applied}, Do: sinktest.SendsWith("select 1; select $1::text", "x")},
	{Name: "SET LOCAL statement_timeout, and runs into it", Want: sinktest.Costs, Says: []string{"57014"}, Do: sinktest.Sends("set local statement_timeout = '10ms'", "select pg_sleep(60)")},
	{Name: "COPY FROM STDIN as a text", Wire: true, Want: sinktest.Costs, Says: []string{"COPY effects"}, Do: sinktest.Sends("COPY effects (list, value) FROM STDIN")},
	{Name: "COPY FROM STDIN as a text, and hides the error", Want: sinktest.Costs, Says: []string{"COPY effects"}, Do: sinktest.Hides("COPY effects (list, value) FROM STDIN")},
	{Name: "COPY TO STDOUT as a text", Wire: true, Want: sinktest.Costs, Says: []string{"COPY ("}, Do: sinktest.Sends("COPY (select 1) TO STDOUT")},

	// The handler's own connection.
	{Name: "cancels its own context during a statement", Wire: true, Answers: true, Want: sinktest.Costs, Do: func(c *sinktest.Call) error {
		return errors.Join(c.Write(), sleepsBriefly(c))
	}},
	{Name: "cancels its own context during a statement, and hides the error", Wire: true, Answers: true, Want: sinktest.Costs, Do: func(c *sinktest.Call) error {
		_ = c.Write()
		_ = sleepsBriefly(c)
		return nil
	}},
	{Name: "pg_terminate_backend of itself", Wire: true, Want: sinktest.Costs, Do: sinktest.Sends("select pg_terminate_backend(pg_backend_pid())")},
	{Name: "pg_terminate_backend of itself, and hides the error", Want: sinktest.Costs, Do: sinktest.Hides("select pg_terminate_backend(pg_backend_pid())")},
	{Name: "pg_terminate_backend of itself in a deferred trigger", Wire: true, Want: sinktest.Costs, Do: sinktest.Sends("insert into idiom_ends values ('x')")},
	{Name: "pg_cancel_backend of itself", Wire: true, Want: sinktest.Costs, Says: []string{"57014"}, Do: sinktest.Sends("select pg_cancel_backend(pg_backend_pid()), pg_sleep(60)")},

	// Results.
	{Name: "rows that are read and closed", Answers: true, Want: sinktest.Applied, Do: sinktest.QueriesAndWrites("select generate_series(1, 3)", func(_ *sinktest.Call, rows sinktest.Rows) {
		for rows.Next() {
		}
		rows.Close()
	})},
	{Name: "rows that are closed half read", Answers: true, Want: sinktest.Applied, Do: sinktest.QueriesAndWrites("select generate_series(1, 3)", sinktest.ClosedHalfRead)},
	{Name: "rows that are left open", Wire: true, Answers: true, Want: sinktest.Costs, Says: []string{"left a result open"}, Do: queries(sinktest.LeftOpen)},
	{Name: "rows that are left open half read", Wire: true, Answers: true, Want: sinktest.Costs, Says: []string{"left a result open"},
		Do: queries(func(_ *sinktest.Call, rows sinktest.Rows) { rows.Next() })},
	{Name: "rows that are read after the return", Wire: true, Answers: true, Want: sinktest.Costs, Says: []string{"left a result open"}, Do: queries(sinktest.ReadLater)},
}

// queries returns a handler that writes its effect, and then uses rows that do not fit into one packet.
func queries(use func(c *sinktest.Call, rows sinktest.Rows)) func(c *sinktest.Call) error {
	return func(c *sinktest.Call) error {
		_ = c.Write()
		rows, err := c.Query("select generate_series(1, 5000)")
		if err == nil {
			use(c, rows)
		}
		return err
	}
}

// raises is a trigger of the user that raises a code of the server or of a sink.
func raises(code string) sinktest.Idiom {
	return sinktest.Idiom{Name: "a trigger that raises " + code, Wire: code == "42P01", Want: sinktest.Costs, Says: []string{"raised by a trigger", code}, Do: sinktest.Sends("insert into idiom_codes values ('" + code + "')")}
}

// sleepsBriefly cancels a statement while the server executes it.
func sleepsBriefly(c *sinktest.Call) error {
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
