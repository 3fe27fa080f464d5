package pgsink

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/epochfence/epochfence/internal/sql/pgschema"
	"github.com/epochfence/epochfence/migrations"
)

// This file migrates the schema, which the outbox and the items of package pgstore share, and decides what
// applications, operators and readers may do. The scripts are in internal/sql/pgschema.

// DefaultSchema is the default of Options.Schema.
const DefaultSchema = pgschema.DefaultName

var appFunctions = []string{"schema_version", "read_fence", "read_fences", "server", "seed", "claim",
	"look_early", "advance", "advance_one", "hold", "write_row", "rows", "requests", "identity_behind", "cas_place", "look_at_peers", "suspect_peer", "leave_peers"}

func schema(o Options) pgschema.Schema { return pgschema.Schema{Of: "pgsink", Name: o.Schema} }

// Migrations returns the schema as SQL for your own migration tool: see package migrations. The
// first script creates the schema if it does not exist.
func Migrations(o Options) ([]migrations.Migration, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	return schema(o).Migrations(), nil
}

// DB is a [*pgx.Conn] or a [*pgxpool.Pool].
//
// [*pgxpool.Pool]: https://pkg.go.dev/github.com/jackc/pgx/v5/pgxpool#Pool
type DB interface {
	BeginTx(ctx context.Context, options pgx.TxOptions) (pgx.Tx, error)
}

// Migrate creates the schema, or brings it up to date, in one transaction: the tables of sinks, of the outbox
// (package pgoutbox), and of items and leases (package pgstore). Of concurrent calls, one
// migrates and the others wait. It leaves a newer schema as it is; one of a later major
// number is [migrations.ErrNewer].
//
// The role that runs Migrate will own the schema and its functions, which run with its privileges.
// It needs CREATE on the database if the schema does not exist, and CREATE on the schema. Then give
// the application's role access with [Grant]. Like [Open], Migrate and Grant wait for a server that
// cannot be reached, up to [Options.StartTimeout].
func Migrate(ctx context.Context, db DB, o Options) error {
	o, err := o.withDefaults()
	if err != nil {
		return err
	}
	return schema(o).Migrate(ctx, db, o.wait())
}

// Grant gives role what an application needs: USAGE on the schema, EXECUTE on functions, and to read and
// write entries of the outbox and items. It gives nothing on the other tables. Run it as the schema's owner, again after each migration that adds
// functions.
//
// A schema is one domain of trust. Its application role may claim and move the partitions of every
// group in it, read their audit logs and what their dead letters are about, and add entries. It cannot
// use up epochs, nor write anything in an operator's name. Give groups that do not trust each other a schema and an owner each.
func Grant(ctx context.Context, db DB, role string, o Options) error {
	o, err := o.withDefaults()
	if err != nil {
		return err
	}
	sql, err := GrantSQL(role, o)
	if err != nil {
		return err
	}
	return schema(o).Grant(ctx, db, o.wait(), role, sql)
}

// GrantSQL returns the SQL that [Grant] runs, for your own migration tool.
func GrantSQL(role string, o Options) (string, error) {
	return grantSQL(role, o, appFunctions, "usage on sequence %s.cas_number", "select on %s.cas_source", "select, insert, update, delete on %s.cas_item",
		"select, insert, delete, update (retry_requested) on %s.outbox_entry")
}

// ErrPermission is returned when the role may not use the schema or execute its functions. An
// application's needs [Grant], and one for [OpenOperator] the SQL of [GrantOperatorSQL] or [GrantReaderSQL].
var ErrPermission = errors.New("role lacks a permission")

// What gives a role its permissions.
const (
	grantApplication = "run pgsink.Grant, epochfence grants --as application, or the SQL of pgsink.GrantSQL, as the schema's owner"
	grantOperator    = "run epochfence grants --as operator (or reader), or the SQL of pgsink.GrantOperatorSQL, as the schema's owner"
)

// The functions that each kind of role may execute. A reader sees fences, the audit log and lists
// of the dead letters and the outbox. An operator also sees their contents, and acts.
var (
	readerFunctions   = []string{"schema_version", "server", "read_fences", "list_fences", "rows", "protections", "outside_writes"}
	operatorFunctions = append([]string{"act", "act_on_row", "contents", "outside", "forget_outside"}, readerFunctions...)
)

// GrantReaderSQL returns SQL that lets role read what [OpenOperator] shows, except the messages of
// dead letters and what is in the requests of the outbox, and change nothing. Run it as the schema's owner, again after each migration that
// adds functions.
func GrantReaderSQL(role string, o Options) (string, error) {
	return grantSQL(role, o, slices.Concat(readerFunctions, []string{"observations"}))
}

// GrantOperatorSQL returns SQL that lets role do all that [OpenOperator] offers. To end the open
// transactions of an owner, role must also be a member of the application's role: grant it that
// role. Run the SQL as the schema's owner, again after each migration that adds functions.
func GrantOperatorSQL(role string, o Options) (string, error) {
	return grantSQL(role, o, slices.Concat(operatorFunctions, []string{"observations", "prune_observed"}))
}

// GrantObserverSQL returns SQL that lets role call the function observe and nothing else, for
// consumers without a fence that are observed before they move over. Run it as the schema's owner.
func GrantObserverSQL(role string, o Options) (string, error) {
	return grantSQL(role, o, []string{"observe"})
}

func grantSQL(role string, o Options, functions []string, more ...string) (string, error) {
	o, err := o.withDefaults()
	if err != nil {
		return "", err
	}
	if err := pgschema.CheckIdentifier("role", role); err != nil {
		return "", fmt.Errorf("pgsink: %w", err)
	}
	s, r := pgschema.Quote(o.Schema), pgschema.Quote(role)
	var b strings.Builder
	fmt.Fprintf(&b, "grant usage on schema %s to %s;\n", s, r)
	b.WriteString("grant execute on function")
	for i, f := range functions {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, "\n    %s.%s", s, f)
	}
	fmt.Fprintf(&b, "\nto %s;\n", r)
	for _, m := range more {
		fmt.Fprintf(&b, "grant "+m+" to %s;\n", s, r)
	}
	return b.String(), nil
}
