package pgoutbox

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/jackc/pgx/v5"
)

// DefaultSchema is the schema that an empty name means.
const DefaultSchema = "epochfence_outbox"

// DB is a [*pgx.Conn] or a [*pgxpool.Pool].
//
// [*pgxpool.Pool]: https://pkg.go.dev/github.com/jackc/pgx/v5/pgxpool#Pool
type DB interface {
	BeginTx(ctx context.Context, options pgx.TxOptions) (pgx.Tx, error)
}

//go:embed migrations/*.sql
var migrationFiles embed.FS

// Migration is one step of the schema. The step itself records that it was
// applied.
type Migration struct {
	Version int    // from 1, without a gap
	SQL     string // several statements; to be run in one transaction
}

// Migrations returns all steps for a schema, "" for [DefaultSchema], as SQL for
// a migration tool of your own. The first creates the schema unless it exists.
func Migrations(schema string) ([]Migration, error) {
	schema, err := checkSchema(schema)
	if err != nil {
		return nil, err
	}
	names, err := fs.Glob(migrationFiles, "migrations/*.sql") // sorted
	if err != nil {
		return nil, err
	}
	var ms []Migration
	for i, name := range names {
		text, err := migrationFiles.ReadFile(name)
		if err != nil {
			return nil, err
		}
		ms = append(ms, Migration{i + 1, strings.ReplaceAll(string(text), `"`+DefaultSchema+`"`, quote(schema))})
	}
	ms[0].SQL = "create schema if not exists " + quote(schema) + ";\n\n" + ms[0].SQL
	return ms, nil
}

// readCommitted is what a statement after a lock relies on: it sees what the
// holder before it did.
var readCommitted = pgx.TxOptions{IsoLevel: pgx.ReadCommitted}

// Migrate creates the schema, "" for [DefaultSchema], or brings it up to date,
// in one transaction. Of concurrent calls one does it and the others wait. A
// schema newer than this program knows is an error. The role needs CREATE on the
// database unless the schema exists; it will own the table. Give the role that the
// application uses access with [Grant].
func Migrate(ctx context.Context, db DB, schema string) error {
	ms, err := Migrations(schema)
	if err != nil {
		return err
	}
	schema, _ = checkSchema(schema) // as Migrations did
	err = pgx.BeginTxFunc(ctx, db, readCommitted, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `select pg_advisory_xact_lock(hashtextextended($1, 0))`, "epochfence outbox migrate "+schema); err != nil {
			return err
		}
		v, err := version(ctx, tx, schema)
		if err != nil {
			return err
		}
		if v > len(ms) {
			return versionError(schema, v, len(ms))
		}
		for _, m := range ms[v:] {
			if _, err := tx.Exec(ctx, m.SQL); err != nil {
				return fmt.Errorf("step %d: %w", m.Version, err)
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("pgoutbox: migrate schema %s: %w", quote(schema), err)
	}
	return nil
}

// Grant lets role use a schema, "" for [DefaultSchema], as an application does:
// to select, insert and delete entries. It needs the schema's owner.
func Grant(ctx context.Context, db DB, schema, role string) error {
	schema, err := checkSchema(schema)
	if err != nil {
		return err
	}
	if err := checkIdentifier("role", role); err != nil {
		return err
	}
	s, r := quote(schema), quote(role)
	sql := fmt.Sprintf("grant usage on schema %s to %s; grant select on %s.outbox_migration to %s; grant select, insert, delete on %s.outbox_entry to %s",
		s, r, s, r, s, r)
	err = pgx.BeginTxFunc(ctx, db, readCommitted, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, sql)
		return err
	})
	if err != nil {
		return fmt.Errorf("pgoutbox: grant schema %s to role %s: %w", s, r, err)
	}
	return nil
}

// version is the schema's, or 0 where there is none.
func version(ctx context.Context, tx pgx.Tx, schema string) (v int, err error) {
	var there bool
	// to_regclass would not do: it can go on answering what it did before another
	// migration, from a cache that nothing has brought up to date.
	err = tx.QueryRow(ctx, `select exists (select from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = c.relnamespace
		where n.nspname = $1 and c.relname = 'outbox_migration')`, schema).Scan(&there)
	if err == nil && there {
		err = tx.QueryRow(ctx, `select coalesce(max(version), 0) from `+quote(schema)+`.outbox_migration`).Scan(&v)
	}
	if err != nil {
		return 0, fmt.Errorf("read the version of the schema: %w", err)
	}
	return v, nil
}

func versionError(schema string, have, want int) error {
	switch {
	case have == 0:
		return fmt.Errorf("there is no outbox in the schema %s; call pgoutbox.Migrate, or run the steps of pgoutbox.Migrations", quote(schema))
	case have < want:
		return fmt.Errorf("the schema %s is of version %d, this program needs %d; call pgoutbox.Migrate", quote(schema), have, want)
	default:
		return fmt.Errorf("the schema %s is of version %d, this program knows none above %d; use a newer program", quote(schema), have, want)
	}
}

// maxIdentifier is how many bytes of an identifier PostgreSQL keeps. It cuts
// off the rest without an error.
const maxIdentifier = 63

func checkSchema(schema string) (string, error) {
	if schema == "" {
		return DefaultSchema, nil
	}
	return schema, checkIdentifier("schema", schema)
}

func checkIdentifier(what, name string) error {
	if name == "" {
		return errors.New("pgoutbox: " + what + " name is empty")
	}
	if len(name) > maxIdentifier || strings.Contains(name, "\x00") {
		return fmt.Errorf("pgoutbox: %s name %q: want at most %d bytes, without NUL", what, name, maxIdentifier)
	}
	return nil
}

func quote(name string) string { return pgx.Identifier{name}.Sanitize() }
