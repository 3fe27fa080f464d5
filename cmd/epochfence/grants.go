package main

import (
	"github.com/spf13/cobra"
)

// roleKind is what a role of the database is for.
type roleKind string

const (
	application roleKind = "application" // what consumers do
	reader      roleKind = "reader"      // what epochfence shows
	operator    roleKind = "operator"    // what epochfence does
)

var roleKinds = []roleKind{application, reader, operator}

func (a *app) grants() *cobra.Command {
	var role, as string
	var execute, box bool
	c := &cobra.Command{
		Use:   "grants --role NAME --as application|reader|operator",
		Short: "Print or run the SQL that gives a role its rights",
		Long: `Print the SQL that gives a role of PostgreSQL its rights, or run it with
--execute, as the schema's owner. It is repeated after migrations.

  application  what a consumer needs
  reader       what is shown: list, describe, history, explain, check, doctor
  operator     that, the messages of dead letters, and to act. To end the open
               transaction of an owner it has to be a member of the
               application's role as well.`,
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
					return secretive(err, a.flags.database)
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
