package pgsink_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/sinks/pgsink"
)

func wantRefused(t *testing.T, what string, err error) {
	t.Helper()
	var pg *pgconn.PgError
	if !errors.As(err, &pg) || pg.Code != pgsink.CodeOutside {
		t.Fatalf("%s: err = %v; want %s", what, err, pgsink.CodeOutside)
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
	want(t, s.Commit(t.Context(), advance(f, 1), epoch.TxOptions{}, commits), epoch.ErrTxEndedByHandler)
	r.wantList("escaped", "1") // without the protection

	r.protect("effects", pgsink.Protection{})
	f = claim(t, s, orders, 6)
	want(t, s.Commit(t.Context(), advance(f, 1), epoch.TxOptions{}, commits), epoch.ErrTxEndedByHandler)
	r.wantOutside("an escaped transaction", "effects:app:1")

	r.protect("effects", pgsink.Protection{Refuse: true})
	f = claim(t, s, orders, 7)
	if err := s.Commit(t.Context(), advance(f, 1), epoch.TxOptions{}, commits); err == nil {
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

func TestTablesThatInheritAreProtectedWithTheirParent(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.sql(`create table sale (day int, amount int); create table old_sale () inherits (sale); create table older_sale () inherits (old_sale);
		insert into sale values (1, 1); insert into older_sale values (2, 2)`)
	r.protect("sale", pgsink.Protection{Refuse: true})
	r.sql("grant all on all tables in schema public to " + r.role)
	for _, sql := range []string{`update sale set amount = 3 where day = 2`, `delete from old_sale`, `insert into older_sale values (3, 3)`, `truncate only old_sale`} {
		wantRefused(t, sql, r.asApp(sql))
	}
	r.sql("create table new_sale () inherits (sale); grant all on new_sale to " + r.role)
	r.protect("sale", pgsink.Protection{Refuse: true})
	wantRefused(t, "a table that inherits since", r.asApp("insert into new_sale values (4, 4)"))
	must(t, pgsink.Unprotect(t.Context(), r.admin, "sale", pgsink.Options{}))
	r.wantNoTrace()
}

func TestAProtectedTableCanBecomeAPartitionOfAProtectedOne(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.sql(`create table sale (day int) partition by range (day); create table may (day int); create table june (day int) partition by list (day)`)
	for _, table := range []string{"sale", "may", "june"} {
		r.protect(table, pgsink.Protection{})
	}
	r.sql(`alter table sale attach partition may for values from (0) to (10); alter table sale attach partition june for values from (10) to (20);
		grant all on all tables in schema public to ` + r.role)
	must(t, r.asApp("insert into may values (1)"))
	r.wantOutside("both are protected", "may:app:1 sale:app:1")
	r.protect("sale", pgsink.Protection{})
	must(t, r.asApp("insert into may values (1)"))
	must(t, r.asApp("truncate may"))
	r.wantOutside("protected again", "may:app:1 sale:app:3")
	must(t, pgsink.Unprotect(t.Context(), r.admin, "sale", pgsink.Options{}))
	must(t, r.asApp("insert into may values (1)"))
}
