package main

import (
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/epochfence/epochfence/migrations"
)

// This file has the commands migrate and grants. The sinks have the migrations and the SQL of the grants.

func (a *app) migrate() *cobra.Command {
	c := &cobra.Command{
		Use: "migrate", Short: "Bring the tables up to date, or print the SQL",
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return usage("migrate wants up, get or list") },
	}
	c.AddCommand(a.migrateUp(), a.migrateGet(), a.migrateList())
	return c
}

func (a *app) migrateUp() *cobra.Command {
	var execute bool
	c := &cobra.Command{
		Use: "up", Short: "Create the tables, or bring them up to date", Args: cobra.NoArgs,
		Long: `Create the sink's tables, or bring them up to date, in one transaction. In MariaDB,
where each CREATE TABLE commits, repeat it if it fails. Concurrent calls wait for
each other. There are no down migrations: without fences a group would begin again.

It shows which versions are missing, which tables they lock and for how long, and
who is alive. With --execute it applies them. Repeat epochfence grants afterwards.`,
		RunE: func(c *cobra.Command, _ []string) error { return a.runMigrateUp(c.Context(), execute) },
	}
	c.Flags().BoolVar(&execute, "execute", false, "do it")
	return c
}

type migrationView struct {
	Where   string `json:"where"`
	Version int    `json:"version"`
	Name    string `json:"name"`
	Applied bool   `json:"applied"`

	Locks []string `json:"locks"` // tables that were there before, while it is applied
}

// tables returns the tables of a database. A store has none, and returns a usage error.
func (a *app) tables(ctx context.Context, create bool) (*tables, error) {
	db, err := a.open(ctx, create)
	if err != nil {
		return nil, err
	}
	t, err := db.tables(ctx)
	if err != nil {
		return nil, a.flags.secretive(err)
	}
	if t == nil {
		return nil, usage("a store has no tables to migrate; pgsink.Migrate creates those of pgstore")
	}
	return t, nil
}

func (t *tables) view(m migrations.Migration) migrationView {
	return migrationView{t.where, m.Version, m.Name, m.Version <= t.have, append([]string{}, m.Locks()...)}
}

func (a *app) runMigrateUp(ctx context.Context, execute bool) error {
	ts, err := a.tables(ctx, execute)
	if err != nil {
		return err
	}
	missing := []migrationView{}
	for _, m := range ts.scripts[min(ts.have, len(ts.scripts)):] {
		missing = append(missing, ts.view(m))
	}
	if execute {
		if err := ts.migrate(ctx); err != nil {
			return a.flags.secretive(err)
		}
		for i := range missing {
			missing[i].Applied = true
		}
	}
	return a.show(map[string]any{"executed": execute, "migrations": missing, "alive": ts.alive}, func() {
		switch {
		case ts.have > len(ts.scripts):
			a.say("The tables have version %d, newer than this command, which knows %d. Processes of both versions work on them.", ts.have, len(ts.scripts))
			return
		case len(missing) == 0:
			a.say("The tables are up to date.")
			return
		}
		a.printMigrations(missing)
		if execute {
			return
		}
		if slices.ContainsFunc(missing, func(m migrationView) bool { return len(m.Locks) > 0 }) {
			a.say("\nEach lock lasts milliseconds: nothing is rewritten. If a table is in use, it\nwaits for up to %v (--timeout)%s.", a.flags.timeout, ts.waits)
		}
		if len(ts.alive) > 0 {
			a.say("\nProcesses that are alive keep working, and do not use what is new:")
			t := newTable("VERSION", ">PROCESSES")
			for _, v := range slices.Sorted(maps.Keys(ts.alive)) {
				t.row(dash(v), ts.alive[v])
			}
			t.print(a.out)
		}
		a.say("\nNothing was done. To do it, add --execute; to see the SQL:\n  epochfence migrate get --after %d", ts.have)
	})
}

func (a *app) printMigrations(vs []migrationView) {
	t := newTable("WHERE", ">VERSION", "NAME", "APPLIED", "LOCKS")
	for _, m := range vs {
		applied := map[bool]string{true: "yes", false: "no"}
		t.row(m.Where, m.Version, m.Name, applied[m.Applied], dash(strings.Join(m.Locks, ", ")))
	}
	t.print(a.out)
}

func (a *app) migrateList() *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "List versions, and which are applied", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			ts, err := a.tables(c.Context(), false)
			if err != nil {
				return err
			}
			vs := []migrationView{}
			for _, m := range ts.scripts {
				vs = append(vs, ts.view(m))
			}
			return a.show(map[string]any{"migrations": vs}, func() { a.printMigrations(vs) })
		},
	}
}

func (a *app) migrateGet() *cobra.Command {
	var after int
	c := &cobra.Command{
		Use: "get", Short: "Print the SQL of the versions, for a migration tool of your own", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			ts, err := a.tables(c.Context(), false)
			if err != nil {
				return err
			}
			type script struct {
				migrationView
				SQL string `json:"sql"`
			}
			scripts := []script{}
			for _, m := range ts.scripts {
				if m.Version > after {
					scripts = append(scripts, script{ts.view(m), m.SQL})
				}
			}
			return a.show(map[string]any{"migrations": scripts}, func() {
				for _, s := range scripts {
					a.say("-- version %d: %s\n%s", s.Version, s.Name, s.SQL)
				}
			})
		},
	}
	c.Flags().IntVar(&after, "after", 0, "only versions after this one")
	return c
}

// roleKind is the kind of work that a database role does.
type roleKind string

const (
	application roleKind = "application" // consumers
	reader      roleKind = "reader"      // epochfence commands that only show
	operator    roleKind = "operator"    // epochfence commands that act, too
	observer    roleKind = "observer"    // consumers without a fence that are observed
)

var roleKinds = []roleKind{application, reader, operator} // in every database

func (a *app) grants() *cobra.Command {
	var role, as string
	var execute bool
	c := &cobra.Command{
		Use:   "grants --role NAME --as application|reader|operator|observer",
		Short: "Print or run the SQL that grants a role its privileges",
		Long: `Print the SQL that grants a role of PostgreSQL, or a user or role of MariaDB (NAME
or NAME@HOST), its privileges, or run it with --execute, as the schema's owner.
Repeat it after migrations.

  application  for consumers
  reader       for commands that only show, in PostgreSQL except deadletters show
               and outbox show
  operator     for commands that act, too, and for the messages of dead letters.
               In PostgreSQL, to end open transactions of an owner, it must also be
               a member of the application's role.
  observer     for old consumers that call epochfence.observe; PostgreSQL only`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			kind := roleKind(as)
			if kind != observer && !slices.Contains(roleKinds, kind) {
				return usage("--as is %q; want application, reader, operator or observer", as)
			}
			db, err := a.open(c.Context(), false)
			if err != nil {
				return err
			}
			sql, err := db.grant(role, kind)
			if err != nil {
				return err
			}
			if execute {
				if err := db.run(c.Context(), sql); err != nil {
					return a.flags.secretive(err)
				}
			}
			return a.show(map[string]any{"executed": execute, "sql": sql}, func() {
				a.say("%s", sql)
				if !execute {
					a.say("-- Nothing was done. Add --execute to run it.")
				}
			})
		},
	}
	c.Flags().StringVar(&role, "role", "", "the role")
	c.Flags().StringVar(&as, "as", "", "what it is for")
	_ = c.MarkFlagRequired("role")
	_ = c.MarkFlagRequired("as")
	c.Flags().BoolVar(&execute, "execute", false, "do it")
	return c
}
