package pgsink_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/epochfence/epochfence/sinks/pgsink"
)

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
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
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
