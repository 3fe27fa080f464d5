package pgsink_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/epochfence/epochfence/cas/memstore"
	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/memsource"
	"github.com/epochfence/epochfence/epoch"
	locks "github.com/epochfence/epochfence/lease"
	"github.com/epochfence/epochfence/operate"
	"github.com/epochfence/epochfence/sinks/pgsink"
)

// protect configures the protection of a table, as the superuser.
func (r *rig) protect(table string, p pgsink.Protection) {
	r.Helper()
	must(r, pgsink.Protect(r.Context(), r.admin, table, p, pgsink.Options{Schema: r.schema}))
}

// outside is what was counted, as table:role:transactions.
func (r *rig) outside() string {
	r.Helper()
	ts, err := r.operatorAt(r.TB, r.operatorsURL).Protected(r.Context())
	must(r, err)
	var all []string
	for _, t := range ts {
		for _, w := range t.Outside {
			all = append(all, fmt.Sprintf("%s:%s:%d", t.Table, map[string]string{r.role: "app", r.operators: "operators"}[w.Role], w.Transactions))
		}
	}
	return strings.Join(all, " ")
}

func (r *rig) wantOutside(what, want string) {
	r.Helper()
	if got := r.outside(); got != want {
		r.Fatalf("%s: counted %q; want %q", what, got, want)
	}
}

// asApp runs each text as a transaction of the application's role that no sink has begun.
func (r *rig) asApp(texts ...string) error {
	r.Helper()
	conn := connect(r.TB.(*testing.T), r.appURL)
	for _, text := range texts {
		if _, err := conn.Exec(r.Context(), text); err != nil {
			return err
		}
	}
	return nil
}

func wantRefused(t *testing.T, what string, err error) {
	t.Helper()
	var pg *pgconn.PgError
	if !errors.As(err, &pg) || pg.Code != pgsink.CodeOutside {
		t.Fatalf("%s: err = %v; want %s", what, err, pgsink.CodeOutside)
	}
}

// fencedForms are the ways to commit as a sink does. Each takes a function that writes.
func fencedForms(t *testing.T, r *rig, s *pgsink.Sink, write func(ctx context.Context, tx execer) error) map[string]error {
	ctx := t.Context()
	other := epoch.Partition{Group: "billing", Topic: "orders", Number: 9}
	seed(t, s, orders, other)
	f, g := claim(t, s, orders, 5), claim(t, s, other, 5)
	in := func(ctx context.Context, tx pgsink.Tx) error { return write(ctx, tx) }
	queued := func(ctx context.Context, q *pgsink.Queue) error { return write(ctx, q) }
	commit := func(n epoch.Offset, calls ...func(context.Context, pgsink.Tx) error) error {
		err := s.Commit(ctx, advance(f, n), calls...)
		f.Next += n
		return err
	}
	errs := map[string]error{}
	errs["one"] = commit(1, in)
	errs["no message"] = commit(0, in)
	errs["calls that share the transaction"] = commit(2, in, in)
	errs["queued"] = s.Queued().Commit(ctx, advance(f, 1), queued, queued)
	f.Next++
	errs["several partitions"] = s.Commit(ctx, append(advance(f, 1), advance(g, 1)...), in)
	f.Next, g.Next = f.Next+1, g.Next+1
	errs["held"] = s.CommitHeld(ctx, holdOf(f), in)
	errs["held and queued"] = s.Queued().CommitHeld(ctx, holdOf(f), queued)
	errs["a nested transaction"] = commit(1, func(ctx context.Context, tx pgsink.Tx) error {
		p := pgsink.AsPgxTx(tx)
		undone := pgx.BeginFunc(ctx, p, func(in pgx.Tx) error { return errors.Join(write(ctx, in), errHostile) })
		if !errors.Is(undone, errHostile) {
			return undone
		}
		return pgx.BeginFunc(ctx, p, func(in pgx.Tx) error { return write(ctx, in) })
	})
	for name, texts := range map[string][2]string{
		"an open savepoint":                      {"savepoint a", ""},
		"constraints made immediate before":      {"set constraints all immediate", ""},
		"constraints made immediate after":       {"", "set constraints all immediate"},
		"constraints made immediate twice":       {"set constraints all immediate", "set constraints all deferred; set constraints all immediate"},
		"constraints made immediate three times": {"set constraints all immediate; set constraints all immediate", "set constraints all immediate"},
		"reset all":                              {"", "reset all"},
	} {
		errs[name] = commit(1, func(ctx context.Context, tx pgsink.Tx) error {
			for _, step := range []func() error{
				func() error { return texted(ctx, tx, texts[0]) }, func() error { return write(ctx, tx) },
				func() error { return texted(ctx, tx, texts[1]) }, func() error { return write(ctx, tx) },
			} {
				if err := step(); err != nil {
					return err
				}
			}
			return nil
		})
	}
	errs["a dead letter"] = commit(1, func(ctx context.Context, tx pgsink.Tx) error {
		return errors.Join(write(ctx, tx), s.DeadLetter(ctx, tx, epoch.Message{Partition: orders}, f.Epoch, errHostile))
	})
	op := r.operatorAt(t, r.operatorsURL)
	letter, err := op.DoDeadLetter(ctx, operate.DeadLetterAct{Kind: operate.Replay, Seen: r.letters(op)[0], By: "anna", Reason: "again"})
	must(t, err)
	errs["a replay"] = s.CommitHeld(ctx, holdOf(f), func(ctx context.Context, tx pgsink.Tx) error {
		replay := operate.RequestedReplay{ID: letter.ID, Request: letter.Request, Message: letter.Message}
		return errors.Join(write(ctx, tx), s.Replayed(ctx, tx, replay, f.Epoch))
	})
	member, err := locks.Open(ctx, memstore.New(), locks.Options{Group: "jobs", Logger: slog.New(slog.DiscardHandler)})
	must(t, err)
	defer member.Close()
	errs["lease.Do"] = locks.Do(ctx, member, s, "nightly", func(ctx context.Context, tx pgsink.Tx, _ epoch.Epoch) error { return write(ctx, tx) })
	return errs
}

// texted sends the statements of a text one by one.
func texted(ctx context.Context, tx execer, text string) error {
	for one := range strings.SplitSeq(text, ";") {
		if one = strings.TrimSpace(one); one != "" {
			if _, err := tx.Exec(ctx, one); err != nil {
				return err
			}
		}
	}
	return nil
}

func TestAFencedTransactionIsNeitherCountedNorRefused(t *testing.T) {
	t.Parallel()
	for _, refuse := range []bool{false, true} {
		for name, statement := range map[string]string{
			"insert":   "insert into effects (list, value) values ('a', 'b')",
			"conflict": "insert into stock values (1, 5) on conflict (item) do update set left_over = stock.left_over + 1",
			"update":   "update stock set left_over = left_over + 1",
			"delete":   "delete from stock where item > 100; insert into stock select max(item) + 101, 1 from stock; delete from stock where item > 100",
			"truncate": "truncate effects",
		} {
			t.Run(fmt.Sprintf("%s, refuse %t", name, refuse), func(t *testing.T) {
				t.Parallel()
				r := newRig(t)
				r.sql("grant delete on stock to " + r.role + "; grant truncate on effects to " + r.role)
				r.protect("effects", pgsink.Protection{Refuse: refuse})
				r.protect("stock", pgsink.Protection{Refuse: refuse})
				for form, err := range fencedForms(t, r, r.open(), func(ctx context.Context, tx execer) error { return texted(ctx, tx, statement) }) {
					if err != nil {
						t.Errorf("%s: %v", form, err)
					}
				}
				r.wantOutside("fenced transactions", "")
			})
		}
	}
}

// What consumers do: each message, batches of them, a queue, and work in the background.
func TestAConsumerIsNotCounted(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.protect("effects", pgsink.Protection{Refuse: true})
	s := r.open()
	for name, h := range map[string]consumer.Handlers[pgsink.Tx]{
		"each": consumer.Each(func(ctx context.Context, tx pgsink.Tx, m consumer.Message, _ epoch.Epoch) error {
			return put(ctx, tx, "each", string(m.Value))
		}),
		"batches": consumer.Batches(func(ctx context.Context, tx pgsink.Tx, ms []consumer.Message, _ epoch.Epoch) error {
			for _, m := range ms {
				if err := put(ctx, tx, "batches", string(m.Value)); err != nil {
					return err
				}
			}
			return nil
		}),
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			worked := make(chan error, 1)
			log := memsource.New(name, 1)
			log.Append(0, "1", "2", "3")
			must(t, memsource.Apply(ctx, log, s, h.Background(func(ctx context.Context, b consumer.Background[pgsink.Tx]) {
				worked <- b.Do(ctx, putting("background", name))
			})))
			r.wantList(name, "1", "2", "3")
			select {
			case err := <-worked:
				if err != nil && !errors.Is(err, context.Canceled) {
					t.Errorf("in the background: %v", err)
				}
			case <-ctx.Done():
				t.Error("the background work did not return")
			}
		})
	}
	r.wantOutside("consumers", "")
}

func TestAWriteFromOutsideIsCountedOnceForItsTransactionByTableAndRole(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.sql("grant insert on stock to " + r.operators + "; grant truncate on effects to " + r.role)
	r.protect("effects", pgsink.Protection{})
	r.protect("public.stock", pgsink.Protection{})
	before := time.Now().Add(-time.Minute)
	for n, texts := range [][]string{
		{"insert into effects (list, value) select 'x', g::text from generate_series(1, 10000) g"},
		{"begin", "insert into effects (list, value) values ('x', '1')", "update effects set value = '2'", "savepoint a", "update effects set value = '3'", "commit"},
		{"begin", "savepoint a", "update effects set value = '4'", "rollback to a", "update effects set value = '5'", "commit"},
		{"set application_name = 'psql'", "truncate effects"},
		{"begin", "set constraints all immediate", "insert into effects (list, value) values ('x', '1')", "insert into effects (list, value) values ('x', '1')", "set constraints all immediate", "commit"},
	} {
		must(t, r.asApp(texts...))
		r.wantOutside(strings.Join(texts, "; "), fmt.Sprintf("effects:app:%d", n+1))
	}
	ts, err := r.operatorAt(t, r.operatorsURL).Protected(t.Context())
	must(t, err)
	if w := ts[0].Outside[0]; w.Application != "" || !w.First.After(before) || w.Last.Before(w.First) || w.Now.Before(w.Last) {
		t.Errorf("counted: %+v", w)
	}
	if _, err := connect(t, r.operatorsURL).Exec(t.Context(), "insert into stock values (7, 1)"); err != nil {
		t.Fatal(err)
	}
	r.wantOutside("two tables, two roles", "effects:app:5 stock:operators:1")
}

func TestWhatIsNoWriteFromOutsideIsNotCounted(t *testing.T) {
	t.Parallel()
	for _, refuse := range []bool{false, true} {
		r := newRig(t)
		r.protect("effects", pgsink.Protection{Refuse: refuse})
		r.protect("stock", pgsink.Protection{Refuse: refuse, Except: []string{r.role}})
		for _, texts := range [][]string{
			{"begin", "insert into effects (list, value) values ('x', '1')", "rollback"},
			{"begin", "savepoint a", "insert into effects (list, value) values ('x', '1')", "rollback to a", "commit"},
			{"update effects set value = 'none' where list = 'none'"},
			{"select * from effects"},
			{"update stock set left_over = 1"}, // the role is excepted
		} {
			must(t, r.asApp(texts...))
		}
		r.wantOutside("none of these", "")
	}
}

func TestAWriteFromOutsideIsRefusedWithTheTableTheRoleAndTheWayToAllowIt(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.sql("grant truncate on effects to " + r.role)
	r.protect("effects", pgsink.Protection{Refuse: true})
	for _, texts := range [][]string{
		{"insert into effects (list, value) values ('x', '1')"},
		{"insert into effects (list, value) values ('x', '1') on conflict do nothing"},
		{"begin", "insert into effects (list, value) values ('x', '1')", "commit"},
		{"begin", "set constraints all immediate", "insert into effects (list, value) values ('x', '1')", "set constraints all immediate"},
		{"truncate effects"},
	} {
		err := r.asApp(texts...)
		wantRefused(t, texts[0], err)
		var pg *pgconn.PgError
		if !errors.As(err, &pg) || pg.SchemaName != "public" || pg.TableName != "effects" || !strings.Contains(pg.Message, "public.effects") || !strings.Contains(pg.Message, r.role) ||
			!strings.Contains(pg.Hint, "epochfence protect public.effects --refuse --except "+r.role) {
			t.Errorf("the error is %+v", pg)
		}
	}
	r.wantList("x")
	r.wantOutside("refused transactions are rolled back", "")
	conn := connect(t, r.appURL)
	_, err := conn.CopyFrom(t.Context(), pgx.Identifier{"effects"}, []string{"list", "value"}, pgx.CopyFromRows([][]any{{"x", "1"}}))
	wantRefused(t, "copy", err)
	r.protect("effects", pgsink.Protection{Refuse: true, Except: []string{r.role}})
	must(t, r.asApp("insert into effects (list, value) values ('x', '1')"))
	r.wantList("x", "1")
}

// A handler that ends its transaction itself has written without a check of its claim: the
// database refuses that too.
func TestAHandlerThatCommitsByItselfIsRefused(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := r.open()
	seed(t, s, orders)
	commits := func(ctx context.Context, tx pgsink.Tx) error {
		_ = put(ctx, tx, "escaped", "1")
		for _, sql := range smuggled("commit") {
			_, _ = tx.Exec(ctx, sql)
		}
		return nil
	}
	f := claim(t, s, orders, 5)
	want(t, s.Commit(t.Context(), advance(f, 1), commits), epoch.ErrTxEndedByHandler)
	r.wantList("escaped", "1") // without the protection

	r.protect("effects", pgsink.Protection{})
	f = claim(t, s, orders, 6)
	want(t, s.Commit(t.Context(), advance(f, 1), commits), epoch.ErrTxEndedByHandler)
	r.wantOutside("an escaped transaction", "effects:app:1")

	r.protect("effects", pgsink.Protection{Refuse: true})
	f = claim(t, s, orders, 7)
	if err := s.Commit(t.Context(), advance(f, 1), commits); err == nil {
		t.Error("a transaction that the handler has ended was committed")
	}
	r.wantList("escaped", "1", "1")
}

func TestPartitionsAreProtectedWithTheirTable(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.sql(`create schema "Odd 'one'"; grant usage on schema "Odd 'one'" to ` + r.role + `;
		create table "Odd 'one'"."Sales" (day int, amount int) partition by range (day);
		create table "Odd 'one'".one partition of "Odd 'one'"."Sales" for values from (0) to (10);
		create table "Odd 'one'".two partition of "Odd 'one'"."Sales" for values from (10) to (20) partition by list (day);
		create table "Odd 'one'".deep partition of "Odd 'one'".two default`)
	const table = `"Odd 'one'"."Sales"`
	r.protect(table, pgsink.Protection{})
	r.sql(`create table "Odd 'one'".later partition of "Odd 'one'"."Sales" for values from (20) to (30);
		grant all on all tables in schema "Odd 'one'" to ` + r.role)
	for n, sql := range []string{
		`insert into "Odd 'one'"."Sales" values (1, 1), (11, 1), (21, 1)`,
		`insert into "Odd 'one'".one values (1, 1)`,
		`insert into "Odd 'one'".deep values (11, 1)`,
		`update "Odd 'one'".later set amount = 2`,
		`update "Odd 'one'"."Sales" set day = 12 where day = 1`,
		`truncate "Odd 'one'".deep`,
		`truncate "Odd 'one'"."Sales"`,
	} {
		must(t, r.asApp(sql))
		r.wantOutside(sql, fmt.Sprintf("Sales:app:%d", n+1))
	}
	must(t, r.asApp(`truncate "Odd 'one'".later`))
	r.wantOutside("a later partition has no trigger for TRUNCATE yet", "Sales:app:7")
	r.protect(table, pgsink.Protection{})
	must(t, r.asApp(`truncate "Odd 'one'".later`))
	r.wantOutside("now it has", "Sales:app:8")
	if sql, err := pgsink.ProtectSQL(t.Context(), r.admin, table, pgsink.Protection{}, pgsink.Options{}); err != nil || len(sql) > 0 {
		t.Errorf("there is nothing to do, and it would do %q, %v", sql, err)
	}
	for _, change := range []func() error{
		func() error {
			return pgsink.Protect(t.Context(), r.admin, `"Odd 'one'".one`, pgsink.Protection{}, pgsink.Options{})
		},
		func() error { return pgsink.Unprotect(t.Context(), r.admin, `"Odd 'one'".deep`, pgsink.Options{}) },
	} {
		if err := change(); !errors.Is(err, pgsink.ErrNotProtectable) {
			t.Errorf("a partition by itself: %v", err)
		}
	}
	must(t, pgsink.Unprotect(t.Context(), r.admin, table, pgsink.Options{}))
	r.wantNoTrace()
}

// wantNoTrace fails the test unless no trigger and no count is there.
func (r *rig) wantNoTrace() {
	r.Helper()
	var left []string
	err := r.admin.QueryRow(r.Context(), `select array(select tgrelid::regclass || ': ' || tgname from pg_trigger where tgfoid = 'epochfence.outside'::regproc
		union all select 'a count of ' || table_name from epochfence.outside_write union all select 'postponed' from epochfence.postponed)`).Scan(&left)
	if err != nil || len(left) > 0 {
		r.Errorf("left: %q, %v", left, err)
	}
}

func TestProtectingAgainReplacesTheConfigurationAndUnprotectLeavesNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ctx, o := t.Context(), pgsink.Options{}
	odd := `odd \000 "röle"`
	r.sql("create role " + pgx.Identifier{odd}.Sanitize())
	defer r.sql("drop role " + pgx.Identifier{odd}.Sanitize())
	state := func() string {
		ts, err := r.operatorAt(t, r.operatorsURL).Protected(ctx)
		must(t, err)
		var all []string
		for _, p := range ts {
			all = append(all, fmt.Sprintf("%s.%s %s refuse %t except %q", p.Schema, p.Table, p.State, p.Refuse, p.Except))
		}
		return strings.Join(all, ", ")
	}
	for _, c := range []struct {
		p    pgsink.Protection
		want string
	}{
		{pgsink.Protection{}, `public.effects on refuse false except []`},
		{pgsink.Protection{Refuse: true}, `public.effects on refuse true except []`},
		{pgsink.Protection{Refuse: true, Except: []string{r.role, odd, r.role}}, fmt.Sprintf(`public.effects on refuse true except %q`, sorted(r.role, odd))},
	} {
		r.protect("effects", c.p)
		if got := state(); got != c.want {
			t.Errorf("protected: %s; want %s", got, c.want)
		}
		if sql, err := pgsink.ProtectSQL(ctx, r.admin, "effects", c.p, o); err != nil || len(sql) > 0 {
			t.Errorf("the same again does %q, %v", sql, err)
		}
	}
	r.protect("effects", pgsink.Protection{})
	r.sql("alter table effects disable trigger epochfence_protect")
	if got := state(); !strings.HasPrefix(got, "public.effects disabled") {
		t.Errorf("with a disabled trigger: %s", got)
	}
	r.protect("effects", pgsink.Protection{})
	must(t, r.asApp("insert into effects (list, value) values ('x', '1')"))
	r.wantOutside("enabled again", "effects:app:1")
	must(t, pgsink.Unprotect(ctx, r.admin, "effects", o))
	r.wantNoTrace()
	must(t, pgsink.Unprotect(ctx, r.admin, "effects", o)) // again
	must(t, r.asApp("insert into effects (list, value) values ('x', '1')"))
	r.wantNoTrace()

	r.protect("stock", pgsink.Protection{})
	must(t, r.asApp("update stock set left_over = 1"))
	r.sql("drop table stock")
	if got := state(); got != "public.stock gone refuse false except []" {
		t.Errorf("of a dropped table: %s", got)
	}
	must(t, pgsink.Unprotect(ctx, r.admin, "stock", o))
	r.wantNoTrace()
	for what, err := range map[string]error{
		"a table that is gone":    pgsink.Unprotect(ctx, r.admin, "stock", o),
		"no table":                pgsink.Protect(ctx, r.admin, "stock", pgsink.Protection{}, o),
		"an index":                pgsink.Protect(ctx, r.admin, "epochfence.fence_pkey", pgsink.Protection{}, o),
		"a table of epochfence's": pgsink.Protect(ctx, r.admin, "epochfence.fence", pgsink.Protection{}, o),
	} {
		if !errors.Is(err, pgsink.ErrNotProtectable) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := pgsink.Protect(ctx, r.admin, "effects", pgsink.Protection{Except: []string{"nobody knows"}}, o); err == nil || !strings.Contains(err.Error(), `"nobody knows"`) {
		t.Errorf("a role that does not exist: %v", err)
	}
}

func sorted(all ...string) []string { slices.Sort(all); return all }

func TestTheOwnerOfTheTableProtectsItAndWritersNeedNoPrivilege(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	owner, ownerURL := r.db.Role(t)
	writer, writerURL := r.db.Role(t)
	conn := connect(t, ownerURL)
	r.sql("create schema shop authorization " + owner)
	for _, sql := range []string{"create table shop.sales (n int)", "grant usage on schema shop to " + writer, "grant insert on shop.sales to " + writer} {
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	err := pgsink.Protect(t.Context(), conn, "shop.sales", pgsink.Protection{}, pgsink.Options{})
	if err == nil || !strings.Contains(err.Error(), "epochfence grants --as operator") {
		t.Errorf("an owner without privileges on the sink: %v", err)
	}
	r.grant(pgsink.GrantOperatorSQL, owner)
	must(t, pgsink.Protect(t.Context(), conn, "shop.sales", pgsink.Protection{}, pgsink.Options{}))
	if err := pgsink.Protect(t.Context(), conn, "public.effects", pgsink.Protection{}, pgsink.Options{}); err == nil || !strings.Contains(err.Error(), "own the table") {
		t.Errorf("another owner's table: %v", err)
	}
	if _, err := connect(t, writerURL).Exec(t.Context(), "insert into shop.sales values (1)"); err != nil {
		t.Fatal(err)
	}
	ts, err := r.operatorAt(t, ownerURL).Protected(t.Context())
	if err != nil || len(ts) != 1 || len(ts[0].Outside) != 1 || ts[0].Outside[0].Role != writer {
		t.Errorf("%+v, %v", ts, err)
	}
	must(t, pgsink.Unprotect(t.Context(), conn, "shop.sales", pgsink.Options{}))
	r.wantNoTrace()
}

// Protect does not let all writers queue up behind it while it waits for one of them.
func TestProtectWaitsForTheTableOnlyForAWhile(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	conn := connect(t, r.appURL)
	for _, sql := range []string{"begin", "update stock set left_over = 1"} {
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	err := pgsink.Protect(ctx, newPool(t, r.db.URL), "stock", pgsink.Protection{}, pgsink.Options{ClaimTimeout: 50 * time.Millisecond})
	if err == nil || !strings.Contains(err.Error(), "has not ended within 50ms") {
		t.Errorf("err = %v", err)
	}
	r.wantNoTrace()
}

// Two writers whose transactions write two tables in opposite orders end, in each isolation, and
// their counts are merged.
func TestWritersFromOutsideDoNotWaitForEachOther(t *testing.T) {
	t.Parallel()
	for _, isolation := range []string{"read committed", "repeatable read", "serializable"} {
		t.Run(isolation, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.sql("create table a (n int); create table b (n int); grant insert on a, b to " + r.role)
			r.protect("a", pgsink.Protection{})
			r.protect("b", pgsink.Protection{})
			r.sql("vacuum (analyze) epochfence.postponed") // as autovacuum does: the tables are small, so plans scan them
			r.sql("vacuum (analyze) epochfence.outside_write")
			one, other := connect(t, r.appURL), connect(t, r.appURL)
			exec := func(conn *pgx.Conn, sql string) {
				t.Helper()
				if _, err := conn.Exec(t.Context(), sql); err != nil {
					t.Fatalf("%s: %v", sql, err)
				}
			}
			const n = 100
			for range n {
				for _, sql := range []string{"begin isolation level " + isolation, "set local lock_timeout = '5s'", "set constraints all immediate"} {
					exec(one, sql)
					exec(other, sql)
				}
				exec(one, "insert into a values (1)")
				exec(other, "insert into b values (1)")
				exec(one, "insert into b values (1)")
				exec(other, "insert into a values (1)")
				exec(one, "commit")
				exec(other, "commit")
			}
			r.wantOutside("", fmt.Sprintf("a:app:%d b:app:%d", 2*n, 2*n))
			var rows int
			must(t, r.admin.QueryRow(t.Context(), "select count(*) from epochfence.outside_write").Scan(&rows))
			if merges := isolation == "read committed"; merges == (rows > 3*n) {
				t.Errorf("%d rows are left of %d", rows, 4*n)
			}

			locks := connect(t, r.db.URL)
			exec(locks, "begin")
			exec(locks, "select from epochfence.outside_write for update")
			exec(one, "set lock_timeout = '5s'")
			for range n { // one in 16 merges
				exec(one, "insert into a values (1)")
			}
		})
	}
}

// The query is in docs/operating.md.
func TestAReaderExportsTheCountsWithTheDocumentedQuery(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	text, err := os.ReadFile("../../docs/sql/outside_writes.sql")
	must(t, err)
	reader, readerURL := r.db.Role(t)
	r.grant(pgsink.GrantReaderSQL, reader)
	r.protect("effects", pgsink.Protection{})
	must(t, r.asApp("insert into effects (list, value) values ('x', '1')"))
	var table, role string
	var total, last float64
	must(t, connect(t, readerURL).QueryRow(t.Context(), string(text)).Scan(&table, &role, &total, &last))
	if age := time.Since(time.Unix(int64(last), 0)); table != "public.effects" || role != r.role || total != 1 || age > time.Hour || age < -time.Hour {
		t.Errorf("%s, %s, %v, %v", table, role, total, last)
	}
}

func TestATableIsProtectedUnderAnyNameOfTheSchema(t *testing.T) {
	t.Parallel()
	r := newRigIn(t, `An "odd" schema's name`)
	r.protect("effects", pgsink.Protection{})
	must(t, r.asApp("insert into effects (list, value) values ('x', '1')"))
	r.wantOutside("", "effects:app:1")
	must(t, pgsink.Unprotect(t.Context(), r.admin, "effects", pgsink.Options{Schema: r.schema}))
	r.wantOutside("", "")
}
