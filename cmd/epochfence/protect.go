package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/epochfence/epochfence/sinks/pgsink"
)

// This file has the command protect, and the findings about protected tables. Package pgsink has
// the triggers.

func (a *app) protect() *cobra.Command {
	var p pgsink.Protection
	var off, execute bool
	c := &cobra.Command{
		Use:   "protect [TABLE]",
		Short: "Count or refuse writes from outside fenced transactions",
		Long: `Make a table of the application count the transactions that write to it without a
fence, or make it refuse them: those of psql, of another program, or of code that
commits by itself. Only PostgreSQL has this. Run it as the table's owner, with the
privileges of an operator (epochfence grants --as operator).

Without TABLE, list the protected tables and the counts by role. With TABLE, show
the SQL; with --execute, run it. Creating the triggers waits for transactions that
use the table, for 3 seconds at most. Repeat it after adding partitions to the
table.

A transaction is counted once for each table. A refused one fails at COMMIT with
the SQLSTATE ` + pgsink.CodeOutside + `, and is not counted. A role is the one that has logged in.`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			switch {
			case len(args) == 0 && (off || execute || p.Refuse || len(p.Except) > 0):
				return usage("which table? Name it, as in epochfence protect public.orders")
			case off && (p.Refuse || len(p.Except) > 0):
				return usage("--off removes the protection; --refuse and --except do not go with it")
			case len(args) == 0:
				return a.listProtected(c.Context())
			case off:
				return a.runProtect(c.Context(), args[0], nil, execute)
			default:
				return a.runProtect(c.Context(), args[0], &p, execute)
			}
		},
	}
	f := c.Flags()
	f.BoolVar(&p.Refuse, "refuse", false, "refuse such transactions; without this, count them")
	f.StringArrayVar(&p.Except, "except", nil, "a role that may write; repeat it for several")
	f.BoolVar(&off, "off", false, "remove the triggers and the counts")
	f.BoolVar(&execute, "execute", false, "do it")
	return c
}

type protectedView struct {
	Table   string        `json:"table"`
	Mode    string        `json:"mode"`
	State   string        `json:"state"`
	Except  []string      `json:"except"`
	Outside []outsideView `json:"outside"`
}

type outsideView struct {
	Role         string    `json:"role"`
	Transactions int64     `json:"transactions"`
	First        time.Time `json:"first"`
	Last         time.Time `json:"last"`
	Application  string    `json:"application"`
}

func viewOfProtected(p pgsink.Protected) protectedView {
	v := protectedView{Table: p.Schema + "." + p.Table, Mode: "count", State: string(p.State), Except: append([]string{}, p.Except...), Outside: []outsideView{}}
	if p.Refuse {
		v.Mode = "refuse"
	}
	for _, w := range p.Outside {
		v.Outside = append(v.Outside, outsideView{w.Role, w.Transactions, w.First, w.Last, w.Application})
	}
	return v
}

func (a *app) listProtected(ctx context.Context) error {
	p, err := a.onPostgres(ctx)
	if err != nil {
		return err
	}
	ts, err := p.protected(ctx)
	if err != nil {
		return a.flags.secretive(err)
	}
	views := []protectedView{}
	for _, t := range ts {
		views = append(views, viewOfProtected(t))
	}
	return a.show(map[string]any{"tables": views}, func() {
		if len(views) == 0 {
			a.say("No table is protected.")
			return
		}
		t := newTable("TABLE", "MODE", "STATE", "EXCEPT", "ROLE", ">TRANSACTIONS", "FIRST", "LAST", "APPLICATION")
		for _, v := range views {
			head := []any{v.Table, v.Mode, v.State, dash(strings.Join(v.Except, ","))}
			if len(v.Outside) == 0 {
				t.row(append(head, "-", 0, "-", "-", "-")...)
			}
			for _, w := range v.Outside {
				t.row(append(head, w.Role, w.Transactions, stamp(w.First), stamp(w.Last), dash(w.Application))...)
			}
		}
		t.print(a.out)
	})
}

// runProtect protects the table, or removes its protection if want is nil.
func (a *app) runProtect(ctx context.Context, table string, want *pgsink.Protection, execute bool) error {
	p, err := a.onPostgres(ctx)
	if err != nil {
		return err
	}
	sql, err := p.protectSQL(ctx, table, want)
	if err == nil && execute {
		err = p.protect(ctx, table, want)
	}
	if err != nil {
		return a.flags.secretive(err)
	}
	return a.show(map[string]any{"executed": execute, "sql": append([]string{}, sql...)}, func() {
		if len(sql) == 0 {
			a.say("There is nothing to do.")
			return
		}
		for _, s := range sql {
			a.say("%s;", printable(s))
		}
		if !execute {
			a.say("\n-- Nothing was done. To do it, add --execute.")
		}
	})
}

func (a *app) onPostgres(ctx context.Context) (*postgres, error) {
	db, err := a.open(ctx, false)
	if err != nil {
		return nil, err
	}
	p, is := db.(*postgres)
	if !is {
		return nil, usage("protect works on PostgreSQL, and the sink is elsewhere")
	}
	return p, nil
}

func (p *postgres) protected(ctx context.Context) ([]pgsink.Protected, error) {
	op, err := p.openOperator(ctx)
	if err != nil {
		return nil, err
	}
	return op.Protected(ctx)
}

func (p *postgres) protectSQL(ctx context.Context, table string, want *pgsink.Protection) ([]string, error) {
	if want == nil {
		return pgsink.UnprotectSQL(ctx, p.pool, table, p.sink)
	}
	return pgsink.ProtectSQL(ctx, p.pool, table, *want, p.sink)
}

func (p *postgres) protect(ctx context.Context, table string, want *pgsink.Protection) error {
	if want == nil {
		return pgsink.Unprotect(ctx, p.pool, table, p.sink)
	}
	return pgsink.Protect(ctx, p.pool, table, *want, p.sink)
}

// reportOutside is for how long a write is reported by default.
const reportOutside = 24 * time.Hour

// outsiders names the roles that have written to protected tables from outside, and protections
// that do not work.
func (a *app) outsiders(ctx context.Context, l limits) (fs []finding) {
	p, is := a.database.(*postgres)
	if !is || l.outside <= 0 {
		return nil
	}
	ts, err := p.protected(ctx)
	if err != nil {
		return []finding{{"protect", warn, "", a.flags.secretive(err).Error(), ""}}
	}
	for _, t := range ts {
		name := t.Schema + "." + t.Table
		if t.State == pgsink.ProtectionDisabled {
			fs = append(fs, finding{"protect", warn, "", "the trigger on table " + name + " is disabled: writes to it are not seen", "ALTER TABLE " + name + " ENABLE TRIGGER epochfence_protect"})
		}
		for _, w := range t.Outside {
			if since := w.Now.Sub(w.Last); since <= l.outside {
				fs = append(fs, finding{"protect", warn, "", fmt.Sprintf("role %s has written to table %s outside of a fenced transaction: %s, the last %s ago, of application %q",
					w.Role, name, count(w.Transactions, "transaction"), age(since), w.Application), "epochfence protect"})
			}
		}
	}
	return fs
}
