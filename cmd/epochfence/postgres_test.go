package main

import (
	"strings"
	"testing"
	"time"

	"github.com/epochfence/epochfence/internal/servers/pgtest"
	"github.com/epochfence/epochfence/operate"
)

// From nothing: the owner migrates and grants, and each role may do what it is for.
func TestRolesOnPostgres(t *testing.T) {
	db := pgtest.Start(t)
	as := func(url string) *cli { return &cli{t, map[string]string{"EPOCHFENCE_DATABASE": url}} }
	owner := as(db.URL)
	if a := owner.does(exitTrouble, "doctor"); !strings.Contains(a.out, "epochfence migrate up") {
		t.Errorf("doctor of a database without tables says\n%s", a.out)
	}
	a := owner.does(exitError, "list")
	if !strings.Contains(a.errs, "epochfence migrate up") {
		t.Errorf("list without tables says %s", a.errs)
	}
	owner.does(exitOK, "migrate", "up", "--schema", "billing", "--execute")
	if a = owner.does(exitError, "list"); !strings.Contains(a.errs, `["billing"]: say which with --schema`) {
		t.Errorf("list without tables beside a sink in another schema says %s", a.errs)
	}
	owner.does(exitOK, "migrate", "up")
	owner.does(exitError, "list") // that was a dry run
	owner.does(exitOK, "migrate", "up", "--execute")
	if a := owner.does(exitOK, "migrate", "up"); !strings.Contains(a.out, "up to date") {
		t.Errorf("migrate says\n%s", a.out)
	}
	roles := map[roleKind]*cli{}
	names := map[roleKind]string{}
	for _, kind := range roleKinds {
		name, url := db.Role(t)
		names[kind], roles[kind] = name, as(url)
		roles[kind].does(exitError, "list")
		owner.does(exitOK, "grants", "--role", name, "--as", string(kind))
		roles[kind].does(exitError, "list") // that was a dry run
		owner.does(exitOK, "grants", "--role", name, "--as", string(kind), "--execute")
	}
	owner.does(exitOK, "drill", "--execute")
	for _, l := range []struct {
		kind roleKind
		code int
		args string
	}{
		{reader, exitOK, "list"},
		{reader, exitOK, "history"},
		{reader, exitOK, "explain epochfence-drill/drill/0"},
		{reader, exitOK, "outbox list"},
		{reader, exitOK, "doctor"},
		{reader, exitOK, "evict epochfence-drill/drill/0"}, // shows what would be done
		{reader, exitError, "evict epochfence-drill/drill/0 --execute --by anna --reason now"},
		{reader, exitError, "drill --execute"},
		{operator, exitOK, "list"},
		{operator, exitOK, "evict epochfence-drill/drill/0 --execute --by anna --reason now"},
		{operator, exitOK, "pause epochfence-drill/drill/0 --execute --by anna --reason now"},
		{operator, exitOK, "resume epochfence-drill/drill/0 --execute --by anna --reason now"},
		{operator, exitOK, "outbox history"},
		{operator, exitError, "drill --execute"},
		{application, exitError, "list"},
		{application, exitOK, "migrate up --execute"}, // nothing is missing
		{application, exitError, "migrate up --execute --schema stock"},
	} {
		if a := roles[l.kind].run(strings.Fields(l.args)...); a.code != l.code && (l.code != exitOK || a.code != exitTrouble || l.args != "doctor") {
			t.Errorf("as %s: epochfence %s: exit code %d, want %d\n%s%s", l.kind, l.args, a.code, l.code, a.out, a.errs)
		}
	}
	tells(t, roles[application].run("doctor").out, "this role may do what the application does", "this role may not do what the reader does: it lacks list_fences, ")
	a = roles[reader].run("doctor")
	for _, want := range []string{"this role may do what the reader does", "this role may not do what the operator does: it lacks act, ", "PostgreSQL "} {
		if !strings.Contains(a.out, want) {
			t.Errorf("doctor as a reader does not say %q:\n%s", want, a.out)
		}
	}
	if a := owner.run("history", "--group", "epochfence-drill", "--kind", "evict"); !strings.Contains(a.out, "anna") || !strings.Contains(a.out, names[operator]) {
		t.Errorf("the log says, of anna as %s,\n%s", names[operator], a.out)
	}
}

// A drill that is repeated leaves nothing but a fence.
func TestDrillLeavesNothing(t *testing.T) {
	everywhere(t, func(t *testing.T, open func(broken) *place) {
		p := open(none)
		c := &cli{t, p.variables()}
		for range 3 {
			c.does(exitOK, "drill", "--execute")
		}
		var found struct {
			Letters []any `json:"dead_letters"`
		}
		c.reads(&found, "deadletters", "list")
		if len(found.Letters) > 0 {
			t.Errorf("left: %v", found.Letters)
		}
		var passed struct {
			Passed bool
			Trials []trial
		}
		c.reads(&passed, "drill", "--execute")
		if want := map[bool]int{true: 5, false: 7}[p.url[:5] == "file:"]; !passed.Passed || len(passed.Trials) != want {
			t.Errorf("%+v", passed)
		}
	})
}

func TestDoctorNamesTheHolderOfAnOldSnapshot(t *testing.T) {
	found := oldSnapshots([]operate.Snapshot{
		{Holder: operate.HolderSession, Name: "psql", PID: 1, Transactions: 999_999, Age: time.Minute},
		{Holder: operate.HolderSession, Name: "pg_dump", PID: 4711, Transactions: 3_000_000, Age: 3 * time.Hour},
		{Holder: operate.HolderSession, Name: "of a role that this one sees the age of", PID: 2, Transactions: 9, Age: time.Hour},
		{Holder: operate.HolderPrepared, Name: "it's", Transactions: 2_000_000},
		{Holder: operate.HolderSlot, Name: "standby", Transactions: 1_000_000},
	})
	if len(found) != 4 {
		t.Fatalf("findings: %+v", found)
	}
	for i, want := range []string{
		"session pg_dump (pid 4711) holds a snapshot that is 3000000 transactions old; open for 3h",
		"session 'of a role that this one sees the age of' (pid 2) holds a snapshot that is 9 transactions old; open for 60m",
		`prepared transaction 'it'\''s' holds a snapshot that is 2000000 transactions old`,
		"replication slot standby holds a snapshot that is 1000000 transactions old",
	} {
		if !strings.HasPrefix(found[i].Detail, want) || found[i].Status != warn {
			t.Errorf("finding %d: %+v; want %s", i, found[i], want)
		}
	}
	for i, want := range []string{"select pg_terminate_backend(4711)", "select pg_terminate_backend(2)", "rollback prepared 'it''s'", "select pg_drop_replication_slot('standby')"} {
		if !strings.Contains(found[i].Remedy, want) {
			t.Errorf("remedy %d: %s; want %s", i, found[i].Remedy, want)
		}
	}
}
