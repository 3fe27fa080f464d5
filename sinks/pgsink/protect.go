package pgsink

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/epochfence/epochfence/internal/sql/pgschema"
)

// This file plans the triggers that find unfenced writes to the application's own tables. They do
// not protect against a role that wants around them. operator.go reads what they have counted.

// Protected is a table that [Protect] has been called for, or one that has counts.
type Protected struct {
	Schema, Table string
	State         ProtectionState
	Protection
	Outside []OutsideWrites // in the order of roles
}

// ProtectionState is the state of the triggers on a table.
type ProtectionState string

// The states of a protected table.
const (
	ProtectionOn       ProtectionState = "on"
	ProtectionDisabled ProtectionState = "disabled" // with ALTER TABLE … DISABLE TRIGGER
	ProtectionGone     ProtectionState = "gone"     // the table was dropped or renamed, and its counts are there
)

// OutsideWrites are the transactions of one role that have written to a table and were not fenced.
type OutsideWrites struct {
	Role         string
	Transactions int64
	First, Last  time.Time // by the clock of the database, in UTC
	Application  string    // application_name of the last transaction
	Now          time.Time // the time of the reading, by the same clock
}

// CodeOutside is the SQLSTATE of the error with which a protected table refuses a transaction. The
// error comes at COMMIT, and names the table and the role. See [Protect].
const CodeOutside = "XF021"

// Protection configures [Protect].
type Protection struct {
	// Refuse makes an unfenced transaction fail at its COMMIT, with the SQLSTATE [CodeOutside].
	// Refused transactions are not counted, because they are rolled back. By default transactions
	// are counted and commit.
	Refuse bool

	// Except lists roles whose transactions are neither counted nor refused. A role is the one that
	// has logged in (session_user), whatever SET ROLE says.
	Except []string
}

// ErrNotProtectable is returned if the name is not a table, or the table cannot be protected by itself,
// such as a partition of a protected table.
var ErrNotProtectable = errors.New("the table cannot be protected")

const (
	protectTrigger  = "epochfence_protect"
	truncateTrigger = "epochfence_protect_truncate"
)

// Protect counts, or refuses, unfenced transactions that write to a table of the application: those in
// which no [Sink] has checked a claim before COMMIT. It covers INSERT, UPDATE,
// DELETE, MERGE, COPY and TRUNCATE, also through partitions and inherited tables. [Operator.Protected]
// has the counts.
//
// The table is written as in SQL, such as orders or "Shop".orders. Its owner calls Protect, with
// the privileges of [GrantOperatorSQL]. Protecting a table again replaces its configuration, and
// changes nothing if the configuration is the same. Call Protect again after adding partitions or
// inherited tables: until then a TRUNCATE of a new partition alone is not seen, nor is a write to a new
// inherited table. A partition that was protected by itself before it was attached counts for both tables
// until then.
//
// Protect creates triggers, for which PostgreSQL locks the table against writes. It waits for that
// lock up to [Options.ClaimTimeout].
//
// Protect detects accidental writes. It does not stop a role that may write to the table and sets the
// settings epochfence.… by itself, or a superuser, who can disable triggers. Logical replication does
// not fire them.
func Protect(ctx context.Context, db DB, table string, p Protection, o Options) error {
	_, err := arrange(ctx, db, table, &p, o, true)
	return err
}

// ProtectSQL returns the statements that [Protect] would run now. There are none if there is
// nothing to do.
func ProtectSQL(ctx context.Context, db DB, table string, p Protection, o Options) (sql []string, err error) {
	return arrange(ctx, db, table, &p, o, false)
}

// Unprotect removes what [Protect] has created on the table, and its counts. It also removes the counts
// of a table that was dropped or renamed.
func Unprotect(ctx context.Context, db DB, table string, o Options) error {
	_, err := arrange(ctx, db, table, nil, o, true)
	return err
}

// UnprotectSQL returns the statements that [Unprotect] would run now.
func UnprotectSQL(ctx context.Context, db DB, table string, o Options) (sql []string, err error) {
	return arrange(ctx, db, table, nil, o, false)
}

// arrange plans the protection of the table, or the end of it if p is nil, and carries it out if
// execute is set.
func arrange(ctx context.Context, db DB, table string, p *Protection, o Options, execute bool) (sql []string, err error) {
	if o, err = o.withDefaults(); err != nil {
		return nil, err
	}
	err = o.wait().InTx(ctx, db, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, fmt.Sprintf("set local lock_timeout = %d", ms(o.ClaimTimeout))); err != nil {
			return err
		}
		a := arrangement{tx: tx, schema: o.Schema}
		if sql, err = a.plan(ctx, table, p); err != nil || !execute {
			return err
		}
		for _, s := range sql {
			if _, err := tx.Exec(ctx, s); isLockTimeout(err) {
				return fmt.Errorf("a transaction that uses the table has not ended within %v; try again: %w", o.ClaimTimeout, err)
			} else if err != nil {
				return err
			}
		}
		return nil
	})
	what := "protect"
	if p == nil {
		what = "unprotect"
	}
	if err != nil {
		return nil, fmt.Errorf("pgsink: %s table %s: %w", what, table, explainProtect(err))
	}
	return sql, nil
}

func explainProtect(err error) error {
	if pg, is := errors.AsType[*pgconn.PgError](err); is && pg.Code == codePermission {
		return fmt.Errorf("the role has to own the table, and needs the privileges of an operator (pgsink.GrantOperatorSQL, epochfence grants --as operator): %w", err)
	}
	return explain(err)
}

// arrangement plans the statements for one table.
type arrangement struct {
	tx     pgx.Tx
	schema string // of the sink
	oid    uint32
	table  pgx.Identifier
	found  []ownTrigger
	tree   []member // the table first, then its partitions and the tables that inherit from it

	attached bool // a partition has triggers of its own beside the copies: it was protected before
}

// member is a table whose rows belong to the table.
type member struct {
	table pgx.Identifier
	oid   uint32
	own   bool // needs a trigger of its own: only partitions get copies
	tree  bool // is partitioned
}

// ownTrigger is a trigger of ours that is no copy of another one's.
type ownTrigger struct {
	Table    pgx.Identifier
	Name     string
	Truncate bool
}

func (a *arrangement) plan(ctx context.Context, table string, p *Protection) ([]string, error) {
	there, err := a.look(ctx, table, p != nil)
	if err != nil {
		return nil, err
	}
	if p == nil {
		if !there {
			return a.forgotten(ctx, table)
		}
		sql := a.drop()
		for _, m := range a.tree {
			if m.own {
				sql = append(sql, a.forget(m.table[0], m.table[1]))
			}
		}
		return sql, nil
	}
	if err := a.known(ctx, p.Except); err != nil {
		return nil, err
	}
	want := protection{mode: "count", roles: slices.Sorted(slices.Values(p.Except))}
	if p.Refuse {
		want.mode = "refuse"
	}
	want.roles = slices.Compact(want.roles)
	have, err := a.protection(ctx)
	if err != nil {
		return nil, err
	}
	if !a.attached && have.enabled && have.mode == want.mode && slices.Equal(have.roles, want.roles) {
		return a.missing(have, a.found), nil
	}
	if err := a.tx.QueryRow(ctx, "select replace(gen_random_uuid()::text, '-', '')").Scan(&want.id); err != nil {
		return nil, err
	}
	return append(a.drop(), a.missing(want, nil)...), nil
}

// look finds the table, and what of ours is on it and on its partitions.
func (a *arrangement) look(ctx context.Context, table string, must bool) (there bool, err error) {
	var (
		schema, name, kind string
		copied             bool
	)
	err = a.tx.QueryRow(ctx, `select c.oid, n.nspname, c.relname, c.relkind::text, exists (
			select from pg_catalog.pg_trigger t where t.tgrelid = c.oid and t.tgfoid = `+a.function()+` and t.tgparentid <> 0)
		from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = c.relnamespace
		where c.oid = pg_catalog.to_regclass($1::text)`, table).Scan(&a.oid, &schema, &name, &kind, &copied)
	switch {
	case errors.Is(err, pgx.ErrNoRows) && !must:
		return false, nil
	case errors.Is(err, pgx.ErrNoRows):
		return false, fmt.Errorf("%w: there is no such table; write it with its schema, as in public.orders", ErrNotProtectable)
	case err != nil:
		return false, err
	case kind != "r" && kind != "p":
		return false, fmt.Errorf("%w: it is no table", ErrNotProtectable)
	case schema == a.schema:
		return false, fmt.Errorf("%w: it is in the schema of epochfence", ErrNotProtectable)
	case copied:
		return false, fmt.Errorf("%w by itself: it is a partition of a protected table, which is the one to name", ErrNotProtectable)
	}
	a.table = pgx.Identifier{schema, name}
	rows, err := a.tx.Query(ctx, `with recursive tree as (select $1::oid as relid
			union select i.inhrelid from tree join pg_catalog.pg_inherits i on i.inhparent = tree.relid)
		select n.nspname, c.relname, c.oid, c.oid = $1::oid or not c.relispartition, c.relkind = 'p', coalesce(t.tgname, ''), coalesce(t.tgtype & 1 = 0, false)
		from tree join pg_catalog.pg_class c on c.oid = tree.relid join pg_catalog.pg_namespace n on n.oid = c.relnamespace
		left join pg_catalog.pg_trigger t on t.tgrelid = c.oid and t.tgfoid = `+a.function()+` and t.tgparentid = 0
		where c.relkind in ('r', 'p')
		order by c.oid <> $1::oid, 1, 2, 6`, a.oid)
	if err != nil {
		return false, err
	}
	var (
		m        member
		trigger  string
		truncate bool
	)
	_, err = pgx.ForEachRow(rows, []any{&schema, &name, &m.oid, &m.own, &m.tree, &trigger, &truncate}, func() error {
		m.table = pgx.Identifier{schema, name}
		if n := len(a.tree); n == 0 || a.tree[n-1].oid != m.oid {
			a.tree = append(a.tree, m)
		}
		if trigger != "" {
			a.found = append(a.found, ownTrigger{Table: m.table, Name: trigger, Truncate: truncate})
			a.attached = a.attached || !truncate && !m.own
		}
		return nil
	})
	return true, err
}

func (a *arrangement) function() string {
	return "(select p.oid from pg_catalog.pg_proc p join pg_catalog.pg_namespace f on f.oid = p.pronamespace where p.proname = 'outside' and f.nspname = " + literal(a.schema) + ")"
}

// known returns an error if a role does not exist: a mistyped name would except nobody.
func (a *arrangement) known(ctx context.Context, roles []string) error {
	var missing []string
	err := a.tx.QueryRow(ctx, "select array(select r from pg_catalog.unnest($1::text[]) r where not exists (select from pg_catalog.pg_roles k where k.rolname = r))", roles).Scan(&missing)
	if err == nil && len(missing) > 0 {
		err = fmt.Errorf("there is no role %q to except", missing)
	}
	return err
}

// protection is what the arguments of the triggers say.
type protection struct {
	mode, id string
	roles    []string
	enabled  bool
}

func (a *arrangement) protection(ctx context.Context) (p protection, err error) {
	err = a.tx.QueryRow(ctx, "select mode, id, roles, enabled from "+pgschema.Quote(a.schema)+".protections() where relation = $1::oid", a.oid).
		Scan(&p.mode, &p.id, &p.roles, &p.enabled)
	if errors.Is(err, pgx.ErrNoRows) {
		return p, nil
	}
	return p, err
}

func (a *arrangement) drop() (sql []string) {
	for _, t := range a.found {
		sql = append(sql, "drop trigger "+pgschema.Quote(t.Name)+" on "+t.Table.Sanitize())
	}
	return sql
}

// missing creates the triggers that are missing. TRUNCATE fires only triggers of the tables that
// it empties, and these are not copied to partitions.
func (a *arrangement) missing(p protection, there []ownTrigger) (sql []string) {
	for _, m := range a.tree {
		has := func(truncate bool) bool {
			return slices.ContainsFunc(there, func(t ownTrigger) bool { return t.Truncate == truncate && slices.Equal(t.Table, m.table) })
		}
		if m.own && !has(false) {
			sql = append(sql, a.create(m.trigger(), m.table, "insert or update or delete", p))
		}
		if !has(true) {
			sql = append(sql, a.create(truncateTrigger, m.table, "truncate", p))
		}
	}
	return sql
}

// trigger names the trigger for rows. PostgreSQL refuses to attach a table that has a trigger of the name
// that the copy would get.
func (m member) trigger() string {
	if m.tree {
		return fmt.Sprint(protectTrigger, "_", m.oid)
	}
	return protectTrigger
}

// create returns the statement for one trigger. Its condition is true once in a transaction.
func (a *arrangement) create(name string, table pgx.Identifier, events string, p protection) string {
	setting := literal("epochfence.wrote_" + p.id)
	args := []string{literal(p.mode), literal(p.id)}
	for _, r := range p.roles {
		args = append(args, literal(r))
	}
	kind, deferred := "constraint trigger", " deferrable initially deferred for each row"
	if events == "truncate" {
		kind, deferred = "trigger", " for each statement"
	}
	return "create " + kind + " " + name + " after " + events + " on " + table.Sanitize() + deferred +
		" when (" + pgschema.Quote(a.schema) + ".first_write(" + setting + ")) execute function " + pgschema.Quote(a.schema) + ".outside(" + strings.Join(args, ", ") + ")"
}

func (a *arrangement) forget(schema, table string) string {
	return "select " + pgschema.Quote(a.schema) + ".forget_outside(" + literal(schema) + ", " + literal(table) + ")"
}

// forgotten plans for a table that is gone, and has counts.
func (a *arrangement) forgotten(ctx context.Context, table string) ([]string, error) {
	rows, err := a.tx.Query(ctx, `select distinct w.table_schema, w.table_name from `+pgschema.Quote(a.schema)+`.outside_writes() w, pg_catalog.parse_ident($1::text) i
		where i = array[w.table_name] or i = array[w.table_schema, w.table_name]`, table)
	if err != nil {
		return nil, err
	}
	gone, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (sql string, err error) {
		var schema, name string
		err = row.Scan(&schema, &name)
		return a.forget(schema, name), err
	})
	if err == nil && len(gone) != 1 {
		err = fmt.Errorf("%w: there is no such table, and no count of it; write it with its schema, as in public.orders", ErrNotProtectable)
	}
	return gone, err
}

// literal quotes a string of which the server keeps every byte.
func literal(s string) string {
	return "'" + strings.ReplaceAll(s, "'", "''") + "'"
}
