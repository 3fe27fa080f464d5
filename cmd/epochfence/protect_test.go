package main

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/epochfence/epochfence/internal/servers/pgtest"
)

// From psql: who writes to a protected table is listed by role, is a finding, and is refused.
func TestProtect(t *testing.T) {
	db := pgtest.Start(t)
	c := &cli{t, map[string]string{"EPOCHFENCE_DATABASE": db.URL}}
	c.does(exitOK, "migrate", "up", "--execute")
	c.does(exitOK, "drill", "--execute")
	admin := db.Superuser(t)
	role, url := db.Role(t)
	if _, err := admin.Exec(t.Context(), "create table orders (n int); grant insert on orders to "+role); err != nil {
		t.Fatal(err)
	}
	psql := func() error {
		conn, err := pgx.Connect(t.Context(), url+"&application_name=psql")
		must(t, err)
		defer func() { _ = conn.Close(t.Context()) }()
		_, err = conn.Exec(t.Context(), "insert into orders values (1)")
		return err
	}
	tells(t, c.does(exitOK, "protect").out, "No table is protected.")
	if a := c.does(exitOK, "protect", "orders"); !strings.Contains(a.out, `create constraint trigger epochfence_protect after insert or update or delete on "public"."orders"`) ||
		!strings.Contains(a.out, "Nothing was done") {
		t.Errorf("the dry run says\n%s", a.out)
	}
	tells(t, c.does(exitOK, "protect").out, "No table is protected.") // that was a dry run
	c.does(exitOK, "protect", "orders", "--execute")
	tells(t, c.does(exitOK, "protect", "orders").out, "There is nothing to do.")
	if out := c.run("doctor", "--group", "epochfence-drill").out; strings.Contains(out, "public.orders") {
		t.Errorf("nobody has written, and doctor says\n%s", out)
	}
	must(t, psql())
	must(t, psql())
	list := c.does(exitOK, "protect").out
	for _, want := range []string{"public.orders  count  on     -       " + role + " ", " 2  20", "psql"} {
		if !strings.Contains(list, want) {
			t.Errorf("protect does not say %q:\n%s", want, list)
		}
	}
	for _, command := range []string{"check", "doctor"} {
		if out := c.does(exitTrouble, command).out; !strings.Contains(out, "role "+role+" has written to table public.orders outside of a fenced transaction: 2 transactions, the last ") ||
			!strings.Contains(out, `of application "psql"`) {
			t.Errorf("%s says\n%s", command, out)
		}
	}
	for within, want := range map[string]bool{"1h": true, "0": false, "1ns": false} {
		if out := c.run("check", "--outside-within", within).out; strings.Contains(out, role) != want {
			t.Errorf("check --outside-within %s says\n%s", within, out)
		}
	}
	var found struct {
		Tables []protectedView
	}
	c.reads(&found, "protect")
	if len(found.Tables) != 1 || found.Tables[0].Outside[0].Role != role || found.Tables[0].Outside[0].Transactions != 2 || found.Tables[0].Outside[0].First.IsZero() {
		t.Errorf("%+v", found)
	}

	c.does(exitOK, "protect", "public.orders", "--refuse", "--execute")
	if err := psql(); err == nil || !strings.Contains(err.Error(), "takes writes only in a fenced transaction") {
		t.Errorf("err = %v", err)
	}
	c.does(exitOK, "protect", "public.orders", "--refuse", "--except", role, "--execute")
	must(t, psql())
	tells(t, c.does(exitOK, "protect").out, "public.orders  refuse  on     "+role)
	if _, err := admin.Exec(t.Context(), "alter table orders disable trigger epochfence_protect"); err != nil {
		t.Fatal(err)
	}
	tells(t, c.does(exitTrouble, "check").out, "the trigger on table public.orders is disabled")

	tells(t, c.does(exitOK, "protect", "--off", "public.orders").out, `drop trigger "epochfence_protect" on "public"."orders"`)
	c.does(exitOK, "protect", "--off", "public.orders", "--execute")
	tells(t, c.does(exitOK, "protect").out, "No table is protected.")
	must(t, psql())
	for _, wrong := range []string{"protect --off", "protect --refuse", "protect orders --off --refuse", "protect orders stock"} {
		c.does(exitUsage, strings.Fields(wrong)...)
	}
	c.does(exitError, "protect", "no_such_table")
}

func TestProtectIsForPostgreSQL(t *testing.T) {
	p := inSQLite(t, none)
	tells(t, (&cli{t, p.variables()}).does(exitUsage, "protect", "orders").errs, "protect works on PostgreSQL")
}
