package consumertest_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/consumertest"
	"github.com/epochfence/epochfence/consumer/consumertest/pgtables"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/servers/pgtest"
	"github.com/epochfence/epochfence/sinks/pgsink"
	"github.com/epochfence/epochfence/sinks/sqlsink"
)

// This file has what only one database can do, and what a Check does to the database.

func TestHandlersThatUseAHandleOrSendManyRowsAreNotAccused(t *testing.T) {
	pool, sink := openPostgres(t, pgtest.Start(t).URL)
	for name, handle := range map[string]consumer.Handler[pgsink.Tx]{
		"a batch and a copy": func(ctx context.Context, tx pgsink.Tx, m consumer.Message, _ epoch.Epoch) error {
			b := &pgx.Batch{}
			b.Queue(`update stock set present = present - 1 where item = $1`, string(m.Value))
			b.Queue(`insert into sales (item, place) values ($1, $2)`, string(m.Value), m.Offset)
			if err := tx.SendBatch(ctx, b).Close(); err != nil {
				return err
			}
			_, err := tx.CopyFrom(ctx, pgx.Identifier{"changes"}, []string{"item"}, pgx.CopyFromRows([][]any{{"a"}, {"b"}}))
			return err
		},
		"a savepoint that is rolled back": func(ctx context.Context, tx pgsink.Tx, m consumer.Message, _ epoch.Epoch) error {
			handle := pgsink.AsPgxTx(tx)
			inner, err := handle.Begin(ctx)
			if err != nil {
				return err
			}
			if _, err := inner.Exec(ctx, `insert into seen values (1), (1)`); err == nil {
				return errors.New("the key was not checked")
			}
			if err := inner.Rollback(ctx); err != nil {
				return err
			}
			_, err = tx.Exec(ctx, `insert into sales (item, place) values ($1, $2)`, string(m.Value), m.Offset)
			return err
		},
		"a handle that is rolled back for some messages": func(ctx context.Context, tx pgsink.Tx, m consumer.Message, _ epoch.Epoch) error {
			if _, err := tx.Exec(ctx, `update stock set present = present - 1 where item = $1`, string(m.Value)); err != nil || m.Offset%2 == 0 {
				return err
			}
			return pgsink.AsPgxTx(tx).Rollback(ctx)
		},
	} {
		t.Run(name, func(t *testing.T) {
			consumertest.Check(t, sink, consumer.Each(handle), orders()[:6], pgtables.Of(pool), consumertest.Options{})
		})
	}
}

func TestAHandlerThatRemembersIsFoundInATransactionOfManyPartitions(t *testing.T) {
	_, sink, open := openSQLite(t)
	last := ""
	r := &recorder{TB: t}
	consumertest.Check(r, sink, consumer.EachTransaction(func(ctx context.Context, tx *sqlsink.Tx, ms []consumer.Message) error {
		for _, m := range ms {
			if _, err := tx.ExecContext(ctx, `INSERT INTO changes (item) VALUES (?)`, last+string(m.Value)); err != nil {
				return err
			}
			last = string(m.Value)
		}
		return nil
	}), orders(), consumertest.SQLite(open), consumertest.Options{})
	if report := strings.Join(r.texts, ""); !strings.Contains(report, "The usual cause is ") {
		t.Errorf("the report is %q", report)
	}
}

func TestAHandlerWhoseMessagesAllFailIsNotSound(t *testing.T) {
	_, sink, open := openSQLite(t)
	for name, x := range map[string]struct {
		handle consumer.Handler[*sqlsink.Tx]
		says   string
	}{
		"all messages": {func(context.Context, *sqlsink.Tx, consumer.Message, epoch.Epoch) error {
			return consumer.Permanent(errors.New("it is no order"))
		}, "OnFailure got all messages, so that none was judged"},
		"a table is missing": {func(ctx context.Context, tx *sqlsink.Tx, m consumer.Message, _ epoch.Epoch) error {
			if m.Offset > 0 {
				return nil
			}
			_, err := tx.ExecContext(ctx, `INSERT INTO no_such_table VALUES (1)`)
			return consumer.Permanent(err)
		}, "because of an error of the database"},
	} {
		t.Run(name, func(t *testing.T) {
			r := &recorder{TB: t}
			consumertest.Check(r, sink, consumer.Each(x.handle).OnFailure(sink.DeadLetter), orders(), consumertest.SQLite(open), consumertest.Options{})
			if report := strings.Join(r.texts, ""); !strings.Contains(report, x.says) {
				t.Errorf("the report is %q, want %q", report, x.says)
			}
		})
	}
}

// logged keeps what a Check logs.
type logged struct {
	recorder
	logs []string
}

func (l *logged) Logf(format string, args ...any) {
	l.logs = append(l.logs, fmt.Sprintf(format, args...))
}

func TestAMessageThatFailsBehindAPoisonMessageIsNamed(t *testing.T) {
	d := newSQLite(t)
	if _, err := d.other.exec(t.Context(), `INSERT INTO totals (name, n) VALUES ('next', 0)`); err != nil {
		t.Fatal(err)
	}
	l := &logged{recorder: recorder{TB: t}}
	d.check(l, handlers{each: func(ctx context.Context, tx db, m consumer.Message, _ epoch.Epoch) error {
		n, err := tx.exec(ctx, `UPDATE totals SET n = n + 1 WHERE n = $1`, place(m))
		if err == nil && n == 0 {
			err = errors.New("the message before is missing")
		}
		return err
	}, failed: func(context.Context, db, consumer.Message) error { return nil }}, orders(), consumertest.Options{})
	logs := strings.Join(l.logs, "")
	if want := `OnFailure has got one before it: message 0/1 ("table") fails: `; len(l.texts) > 0 || !strings.Contains(logs, want) || strings.Contains(logs, "of 12 messages") {
		t.Errorf("the report is %q and the log %q, want it to have %q", l.texts, logs, want)
	}
}

func TestARoleThatMayNotReadATableIsNotJudgedWithoutIt(t *testing.T) {
	server := pgtest.Start(t)
	pool, _ := openPostgres(t, server.URL)
	role, url := server.Role(t)
	grant, err := pgsink.GrantSQL(role, pgsink.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := pool.Exec(t.Context(), grant+`; grant insert on sales to `+role+`; grant usage on sequence sales_id_seq to `+role); err != nil {
		t.Fatal(err)
	}
	application, err := pgxpool.New(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(application.Close)
	sink, err := pgsink.Open(t.Context(), application, pgsink.Options{})
	if err != nil {
		t.Fatal(err)
	}
	r := &recorder{TB: t}
	consumertest.Check(r, sink, consumer.Each(func(ctx context.Context, tx pgsink.Tx, m consumer.Message, _ epoch.Epoch) error {
		_, err := tx.Exec(ctx, `insert into sales (item, place) values ($1, $2)`, string(m.Value), m.Offset)
		return err
	}), orders(), pgtables.Of(pool), consumertest.Options{})
	if report := strings.Join(r.texts, ""); !strings.Contains(report, "permission denied") || strings.Contains(report, "usual cause") {
		t.Errorf("the report is %q, want that the role may not read", report)
	}
}

// contents returns all rows of the user's tables and of the sink's.
func contents(t *testing.T, d consumertest.Tables) string {
	t.Helper()
	rows, err := d.Query(t.Context(), nil, d.Dialect().Columns)
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for _, r := range rows {
		values, err := d.Query(t.Context(), nil, fmt.Sprintf("SELECT "+d.Dialect().Quote+" FROM %s", `"`+r[2]+`"`, r[1]))
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintln(&b, r, values)
	}
	return b.String()
}

func TestRowsTriggersAndKeysAreAsBeforeAfterACheck(t *testing.T) {
	const rows = `INSERT INTO sales (item, place, note) VALUES ('it''s', 1, NULL), ('a\\b', 2, 'ü');
		INSERT INTO parts SELECT id, 7 FROM sales; UPDATE stock SET price = 9 WHERE item = 'lamp'`
	h := handlers{each: func(ctx context.Context, tx db, m consumer.Message, _ epoch.Epoch) error {
		if _, err := tx.exec(ctx, `UPDATE stock SET price = price + 1 WHERE item = $1`, item(m)); err != nil {
			return err
		}
		_, err := tx.exec(ctx, `DELETE FROM parts`)
		return errors.Join(err, sell(ctx, tx, m, nil))
	}}
	t.Run("sqlite", func(t *testing.T) {
		d, _, open := openSQLite(t)
		if _, err := open.Exec(rows); err != nil {
			t.Fatal(err)
		}
		before := contents(t, consumertest.SQLite(open))
		d.check(t, h, orders(), consumertest.Options{})
		if after := contents(t, consumertest.SQLite(open)); after != before {
			t.Errorf("after the check the rows are\n%s\nwant\n%s", after, before)
		}
		if _, err := open.Exec(`INSERT INTO parts VALUES (99, 1)`); err == nil {
			t.Error("foreign keys are not checked any more")
		}
		triggers := 0
		if err := open.QueryRow(`SELECT count(*) FROM sqlite_master WHERE type = 'trigger' AND name = 'changed'`).Scan(&triggers); err != nil || triggers != 1 {
			t.Errorf("there are %d triggers, %v; want 1", triggers, err)
		}
	})
	t.Run("postgres", func(t *testing.T) {
		pool, sink := openPostgres(t, pgtest.Start(t).URL)
		if _, err := pool.Exec(t.Context(), rows); err != nil {
			t.Fatal(err)
		}
		before := contents(t, pgtables.Of(pool))
		consumertest.Check(t, sink, handlersOn(h, onPostgres), orders(), pgtables.Of(pool), consumertest.Options{})
		if after := contents(t, pgtables.Of(pool)); after != before {
			t.Errorf("after the check the rows are\n%s\nwant\n%s", after, before)
		}
		if _, err := pool.Exec(t.Context(), `INSERT INTO parts VALUES (99, 1)`); err == nil {
			t.Error("foreign keys are not checked any more")
		}
	})
}

func TestOneConnectionIsEnoughForSQLite(t *testing.T) {
	d, _, open := openSQLite(t)
	open.SetMaxOpenConns(1)
	d.check(t, handlers{each: func(ctx context.Context, tx db, m consumer.Message, _ epoch.Epoch) error {
		return errors.Join(take(ctx, tx, m), sell(ctx, tx, m, nil))
	}, failed: func(ctx context.Context, tx db, m consumer.Message) error { return sell(ctx, tx, m, "failed") }}, orders(), consumertest.Options{})
}

func TestTheSameSeedGivesTheSameReport(t *testing.T) {
	h := handler{makes: func(world) handlers {
		return handlers{batch: func(ctx context.Context, tx db, ms []consumer.Message) error {
			n := int64(len(ms))
			if n < 3 { // so that only a transaction of a random size shows it
				n = 1
			}
			if n == int64(len(orders())) {
				n = 1
			}
			_, err := tx.exec(ctx, `INSERT INTO totals (name, n) VALUES ('all', $1) ON CONFLICT (name) DO UPDATE SET n = max(totals.n, $1)`, n)
			return err
		}}
	}, o: consumertest.Options{Seed: 5}}
	first, second := h.report(t, newSQLite(t)), h.report(t, newSQLite(t))
	if first == "" || first != second {
		t.Errorf("the reports are\n%s\nand\n%s", first, second)
	}
}

func TestACheckThatCannotJudgeFails(t *testing.T) {
	d := newSQLite(t)
	h := handlers{each: func(ctx context.Context, tx db, m consumer.Message, _ epoch.Epoch) error {
		return sell(ctx, tx, m, nil)
	}}
	for want, c := range map[string]struct {
		messages []consumer.Message
		o        consumertest.Options
	}{
		"no messages": {nil, consumertest.Options{}},
		`"sale.note"`: {orders(), consumertest.Options{Ignore: []string{"sale.note"}}},
		`"sale"`:      {orders(), consumertest.Options{Tables: []string{"sale"}}},
		"the sink's":  {orders(), consumertest.Options{Tables: []string{"epochfence_fence"}}},
	} {
		r := &recorder{TB: t}
		d.check(r, h, c.messages, c.o)
		if report := strings.Join(r.texts, ""); !strings.Contains(report, want) {
			t.Errorf("the report is %q, want it to have %s", report, want)
		}
	}
}

// selling sells each message.
func selling[TX any](wrap func(TX) db) consumer.Handlers[TX] {
	return handlersOn(each(func(ctx context.Context, tx db, m consumer.Message, _ epoch.Epoch) error {
		return sell(ctx, tx, m, nil)
	}), wrap)
}

func TestADatabaseInUseIsRefusedAndLeftAlone(t *testing.T) {
	for want, prepare := range map[string]string{
		"totals has more than 10000 rows": `INSERT INTO totals (name, n) WITH RECURSIVE a (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM a WHERE n < 10001) SELECT CAST(n AS TEXT), n FROM a`,
		"a fence of others/orders/3":      `INSERT INTO epochfence_fence (group_name, topic, number, log_id, lease_source, next_offset) VALUES ('others', 'orders', 3, 'l', 's', 5)`,
	} {
		d, _, open := openSQLite(t)
		if _, err := open.Exec(prepare); err != nil {
			t.Fatal(err)
		}
		before := contents(t, consumertest.SQLite(open))
		called := false
		r := &recorder{TB: t}
		d.check(r, each(func(context.Context, db, consumer.Message, epoch.Epoch) error { called = true; return nil }), orders(), consumertest.Options{Tables: []string{"stock"}})
		if report := strings.Join(r.texts, ""); !strings.Contains(report, want) || called || contents(t, consumertest.SQLite(open)) != before {
			t.Errorf("the report is %q, want it to have %q; called: %t", report, want, called)
		}
	}
	pool, sink := openPostgres(t, pgtest.Start(t).URL)
	unlock, err := pgtables.Of(pool).Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	r := &recorder{TB: t}
	consumertest.Check(r, sink, selling(onPostgres), orders()[:1], pgtables.Of(pool), consumertest.Options{})
	if report := strings.Join(r.texts, ""); !strings.Contains(report, "another Check runs") {
		t.Errorf("the report is %q", report)
	}
	unlock()
	consumertest.Check(t, sink, selling(onPostgres), orders()[:1], pgtables.Of(pool), consumertest.Options{})
	if _, err := pool.Exec(t.Context(), `insert into epochfence.fence (group_name, topic, partition, log_id, lease_source, next_offset) values ('others', 'orders', 3, 'l', 's', 5)`); err != nil {
		t.Fatal(err)
	}
	r = &recorder{TB: t}
	consumertest.Check(r, sink, selling(onPostgres), orders()[:1], pgtables.Of(pool), consumertest.Options{})
	if report := strings.Join(r.texts, ""); !strings.Contains(report, "a fence of others/orders/3") {
		t.Errorf("the report is %q", report)
	}
}

func TestTablesBesideTheSinksAndThoseWithHeirsAreJudged(t *testing.T) {
	pool, err := pgxpool.New(t.Context(), pgtest.Start(t).URL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	conn, err := pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	err = errors.Join(pgsink.Migrate(t.Context(), conn.Conn(), pgsink.Options{Schema: "app"}), conn.Conn().PgConn().Exec(t.Context(), `
		create table app.parent (id bigint primary key, state text not null default 'unknown'::text); create table app.child () inherits (app.parent);
		create table app.part (id bigint primary key) partition by range (id); create table app.part_1 partition of app.part for values from (0) to (1000);
		create table app.link (part bigint references app.part references app.part_1);
		insert into app.part values (1); insert into app.link values (1); insert into app.parent values (1, 'a'); insert into app.child values (2, 'b')`).Close())
	conn.Release()
	if err != nil {
		t.Fatal(err)
	}
	sink, err := pgsink.Open(t.Context(), pool, pgsink.Options{Schema: "app"})
	if err != nil {
		t.Fatal(err)
	}
	check := func(note func() string) string {
		r := &recorder{TB: t}
		consumertest.Check(r, sink, consumer.Each(func(ctx context.Context, tx pgsink.Tx, m consumer.Message, _ epoch.Epoch) error {
			_, err := tx.Exec(ctx, `insert into app.link values (1)`)
			_, wrong := tx.Exec(ctx, `update app.parent set state = $1`, string(m.Value)+note())
			return errors.Join(err, wrong)
		}), orders(), pgtables.Of(pool), consumertest.Options{})
		return strings.Join(r.texts, "")
	}
	before := contents(t, pgtables.Of(pool))
	if report := check(func() string { return "" }); report != "" || contents(t, pgtables.Of(pool)) != before {
		t.Errorf("the report is %q; the rows are\n%s\nwere\n%s", report, contents(t, pgtables.Of(pool)), before)
	}
	n := 0
	if report := check(func() string { n++; return fmt.Sprint(n) }); !strings.Contains(report, "app.parent") {
		t.Errorf("the report is %q, want that parent differs", report)
	}
}

func TestNumbersOfRowsThatWereThereAreCompared(t *testing.T) {
	for name, open := range map[string]func(testing.TB) database{"sqlite": newSQLite, "postgres": newPostgres} {
		t.Run(name, func(t *testing.T) {
			d := open(t)
			d.other.must(t.Context(), `INSERT INTO sales (item, place) VALUES ('a', 0), ('a', 0)`)
			for table, statement := range map[string]string{"parts": `INSERT INTO parts VALUES ($1, 0)`, "sales": `DELETE FROM sales WHERE id = $1`} {
				n := int64(0)
				r := &recorder{TB: t}
				d.check(r, each(func(ctx context.Context, tx db, _ consumer.Message, _ epoch.Epoch) error {
					n++
					_, err := tx.exec(ctx, statement, 1+n%2)
					return err
				}), orders()[:1], consumertest.Options{})
				if report := strings.Join(r.texts, ""); !strings.Contains(report, table+"\n") {
					t.Errorf("the report is %q, want that rows of %s differ", report, table)
				}
			}
		})
	}
}

func TestAfterARestoreThatFailsSQLiteChecksForeignKeysAgain(t *testing.T) {
	_, _, open := openSQLite(t)
	open.SetMaxOpenConns(1)
	if err := consumertest.SQLite(open).Restore(t.Context(), []string{`DELETE FROM nothing`}); err == nil {
		t.Fatal("a table that does not exist was emptied")
	}
	if _, err := open.Exec(`INSERT INTO parts VALUES (99, 1)`); err == nil {
		t.Error("foreign keys are not checked any more")
	}
}

// times returns what a Check says of a handler that copies times to totals and has no memory.
func times(t *testing.T, ms []consumer.Message, text string) string {
	d, _, open := openSQLite(t)
	if _, err := open.Exec(`INSERT INTO sales (item, place) VALUES ('lamp', 0)`); err != nil {
		t.Fatal(err)
	}
	r := &recorder{TB: t}
	d.check(r, each(func(ctx context.Context, tx db, m consumer.Message, _ epoch.Epoch) error {
		_, err := tx.exec(ctx, `INSERT INTO totals SELECT $1, 0, `+text+` FROM sales WHERE item = 'lamp'`, fmt.Sprint(place(m)))
		return err
	}), ms, consumertest.Options{})
	return strings.Join(r.texts, "")
}

func TestATimeOfAnotherRowIsNoneOfTheClock(t *testing.T) {
	if report := times(t, orders()[:3], `at`); report != "" {
		t.Errorf("a handler that copies a time was accused: %s", report)
	}
	ms := orders()[:3]
	ms[0].Time = time.Now()
	if report := times(t, ms, `$1 || ' on ' || date('now')`); !strings.Contains(report, "a clock") || !strings.Contains(report, "message 0/1") {
		t.Errorf("the report is %q, want that the second message, which has no present time, shows the clock", report)
	}
}

func TestARewindLeavesTablesThatAreNotComparedAlone(t *testing.T) {
	d := newSQLite(t)
	r := &recorder{TB: t}
	d.check(r, each(func(ctx context.Context, tx db, m consumer.Message, _ epoch.Epoch) error {
		n, err := tx.exec(ctx, `INSERT INTO seen VALUES ($1) ON CONFLICT DO NOTHING`, place(m))
		if err != nil || n == 0 {
			return err
		}
		return take(ctx, tx, m)
	}), orders(), consumertest.Options{Rewind: true, Tables: []string{"stock"}})
	if len(r.texts) > 0 {
		t.Errorf("a handler that keeps what it has seen was accused: %s", r.texts)
	}
}
