package main

import (
	"github.com/spf13/cobra"
)

// This file has the command grants. The packages of the sink and the outbox have the SQL.

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
