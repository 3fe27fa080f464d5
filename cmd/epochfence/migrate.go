package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
)

// This file has the commands migrate and grants. The packages that own the tables have the migrations
// and the SQL of the grants.

func (a *app) migrate() *cobra.Command {
	c := &cobra.Command{
		Use: "migrate", Short: "Bring the tables up to date, or print the SQL",
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return usage("migrate wants up, get or list") },
	}
	c.AddCommand(a.migrateUp(), a.migrateGet(), a.migrateList())
	return c
}

const outboxToo = "the outbox's tables too"

func (a *app) migrateUp() *cobra.Command {
	var execute, box bool
	c := &cobra.Command{
		Use: "up", Short: "Create the tables, or bring them up to date", Args: cobra.NoArgs,
		Long: `Create the sink's tables, or bring them up to date, in one transaction. Concurrent
calls wait for each other. There are no down migrations: without fences a group
would begin again.

It shows which versions are missing; with --execute it applies them. Repeat
epochfence grants afterwards.`,
		RunE: func(c *cobra.Command, _ []string) error { return a.runMigrateUp(c.Context(), execute, box) },
	}
	c.Flags().BoolVar(&execute, "execute", false, "do it")
	c.Flags().BoolVar(&box, "outbox", false, outboxToo)
	return c
}

type migrationView struct {
	Of      string `json:"of"`
	Where   string `json:"where"`
	Version int    `json:"version"`
	Name    string `json:"name"`
	Applied bool   `json:"applied"`
}

// all returns the tables that a command is about.
func (a *app) all(ctx context.Context, box, create bool) ([]tables, error) {
	db, err := a.open(ctx, create)
	if err != nil {
		return nil, err
	}
	ts, err := db.tables(ctx)
	if err != nil {
		return nil, a.flags.secretive(err)
	}
	if len(ts) == 0 {
		return nil, usage("a store has no tables to migrate; pgstore.Migrate creates those of its store")
	}
	if !box {
		ts = ts[:1]
	}
	return ts, nil
}

func migrationsOf(ts []tables) []migrationView {
	vs := []migrationView{}
	for _, t := range ts {
		for _, m := range t.scripts {
			vs = append(vs, migrationView{t.of, t.where, m.Version, m.Name, m.Version <= t.have})
		}
	}
	return vs
}

func (a *app) runMigrateUp(ctx context.Context, execute, box bool) error {
	ts, err := a.all(ctx, box, execute)
	if err != nil {
		return err
	}
	for _, t := range ts {
		if t.have > len(t.scripts) {
			return fmt.Errorf("the %s's tables in %s have version %d, newer than this program, which has %d: update it", t.of, t.where, t.have, len(t.scripts))
		}
	}
	missing := []migrationView{}
	for _, m := range migrationsOf(ts) {
		if !m.Applied {
			missing = append(missing, m)
		}
	}
	if execute {
		for _, t := range ts {
			if err := t.migrate(ctx); err != nil {
				return a.flags.secretive(err)
			}
		}
		for i := range missing {
			missing[i].Applied = true
		}
	}
	return a.show(map[string]any{"executed": execute, "migrations": missing}, func() {
		if len(missing) == 0 {
			a.say("The tables are up to date.")
			return
		}
		a.printMigrations(missing)
		if !execute {
			a.say("\nNothing was done. To do it, add --execute.")
		}
	})
}

func (a *app) printMigrations(vs []migrationView) {
	t := newTable("OF", "WHERE", ">VERSION", "NAME", "APPLIED")
	for _, m := range vs {
		applied := "no"
		if m.Applied {
			applied = "yes"
		}
		t.row(m.Of, m.Where, m.Version, m.Name, applied)
	}
	t.print(a.out)
}

func (a *app) migrateList() *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "List versions, and which are applied", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			ts, err := a.all(c.Context(), true, false)
			if err != nil {
				return err
			}
			vs := migrationsOf(ts)
			return a.show(map[string]any{"migrations": vs}, func() { a.printMigrations(vs) })
		},
	}
}

func (a *app) migrateGet() *cobra.Command {
	var box bool
	var after int
	c := &cobra.Command{
		Use: "get", Short: "Print the SQL of the versions, for a migration tool of your own", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			ts, err := a.all(c.Context(), box, false)
			if err != nil {
				return err
			}
			type script struct {
				migrationView
				SQL string `json:"sql"`
			}
			scripts := []script{}
			for _, t := range ts {
				for _, m := range t.scripts {
					if m.Version > after {
						scripts = append(scripts, script{migrationView{t.of, t.where, m.Version, m.Name, m.Version <= t.have}, m.SQL})
					}
				}
			}
			return a.show(map[string]any{"migrations": scripts}, func() {
				for _, s := range scripts {
					a.say("-- %s, version %d: %s\n%s", s.Of, s.Version, s.Name, s.SQL)
				}
			})
		},
	}
	c.Flags().BoolVar(&box, "outbox", false, outboxToo)
	c.Flags().IntVar(&after, "after", 0, "only versions after this one")
	return c
}

// roleKind is the kind of work that a database role does.
type roleKind string

const (
	application roleKind = "application" // consumers
	reader      roleKind = "reader"      // epochfence commands that only show
	operator    roleKind = "operator"    // epochfence commands that act, too
)

var roleKinds = []roleKind{application, reader, operator}

func (a *app) grants() *cobra.Command {
	var role, as string
	var execute, box bool
	c := &cobra.Command{
		Use:   "grants --role NAME --as application|reader|operator",
		Short: "Print or run the SQL that grants a role its privileges",
		Long: `Print the SQL that grants a role of PostgreSQL its privileges, or run it with
--execute, as the schema's owner. Repeat it after migrations.

  application  for consumers
  reader       for commands that only show, except deadletters show and outbox
               show
  operator     for commands that act, too, and for the messages of dead letters.
               To end open transactions of an owner, it must also be a member of
               the application's role.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			kind := roleKind(as)
			if kind != application && kind != reader && kind != operator {
				return usage("--as is %q; want application, reader or operator", as)
			}
			db, err := a.open(c.Context(), false)
			if err != nil {
				return err
			}
			sql, err := db.grant(role, kind, box)
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
	c.Flags().BoolVar(&box, "outbox", false, outboxToo)
	return c
}
