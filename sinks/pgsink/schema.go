package pgsink

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"log/slog"
	"path"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/epochfence/epochfence/internal/reach"
)

// DefaultSchema is the schema that an empty name means.
const DefaultSchema = "epochfence"

// maxIdentifier is how many bytes of an identifier PostgreSQL keeps. It cuts
// off the rest without an error.
const maxIdentifier = 63

//go:embed migrations/*.sql
var migrationFiles embed.FS

// appFunctions are what an application calls.
var appFunctions = []string{"schema_version", "read_fence", "read_fences", "server", "seed", "claim", "enter", "advance", "hold", "dead_letter"}

// Migration is one step of the schema. Steps are applied once, in order. The
// step itself records that it was, so it does not matter whether [Migrate] or
// another tool applies it.
type Migration struct {
	Version int    // from 1, without a gap
	Name    string // fit for a file's name
	SQL     string // several statements; to be run in one transaction
}

// Migrations returns all steps for a schema, "" for [DefaultSchema], as SQL for
// a migration tool of your own. The first creates the schema unless it exists.
func Migrations(schema string) ([]Migration, error) {
	schema, err := checkSchema(schema)
	if err != nil {
		return nil, err
	}
	steps := steps(schema)
	steps[0].SQL = "create schema if not exists " + quote(schema) + ";\n\n" + steps[0].SQL
	return steps, nil
}

// steps are the migrations without the creation of the schema.
func steps(schema string) []Migration {
	names, err := fs.Glob(migrationFiles, "migrations/*.sql") // sorted
	if err != nil {
		panic(err) // the pattern is a constant
	}
	var ms []Migration
	for _, file := range names {
		text, err := migrationFiles.ReadFile(file)
		if err != nil {
			panic(err) // it is part of the binary
		}
		number, name, _ := strings.Cut(strings.TrimSuffix(path.Base(file), ".sql"), "_")
		version, err := strconv.Atoi(number)
		if err != nil || version != len(ms)+1 {
			panic("pgsink: migrations/" + file + " is out of order")
		}
		ms = append(ms, Migration{
			Version: version,
			Name:    name,
			SQL:     strings.ReplaceAll(string(text), `"`+DefaultSchema+`"`, quote(schema)),
		})
	}
	return ms
}

// schemaVersion is what this code works with.
var schemaVersion = len(steps(DefaultSchema))

// Beginner is a [*pgx.Conn] or a [*pgxpool.Pool].
//
// [*pgxpool.Pool]: https://pkg.go.dev/github.com/jackc/pgx/v5/pgxpool#Pool
type Beginner interface {
	BeginTx(ctx context.Context, options pgx.TxOptions) (pgx.Tx, error)
}

// readCommitted is the isolation that statements after a lock rely on, whatever
// the default of the database: they see what the holder before us did.
var readCommitted = pgx.TxOptions{IsoLevel: pgx.ReadCommitted}

// Migrate creates the schema, "" for [DefaultSchema], or brings it up to date,
// in one transaction. Of concurrent calls one does it and the others wait. A
// schema that is up to date is left alone; one that is newer than this code is
// [ErrSchemaNewer].
//
// The role it runs as will own the schema and the functions, and they run with
// its rights. It needs CREATE on the database unless the schema exists, and
// CREATE on the schema. Give the role that the application uses access with
// [Grant]. Like [Open], both wait up to 30 s for a server that cannot be reached.
func Migrate(ctx context.Context, db Beginner, schema string) error {
	schema, err := checkSchema(schema)
	if err != nil {
		return err
	}
	if err := begin(ctx, db, func(tx pgx.Tx) error { return migrate(ctx, tx, schema) }); err != nil {
		return fmt.Errorf("pgsink: migrate schema %s: %w", quote(schema), explainServer(err))
	}
	return nil
}

// begin runs f in a transaction. It waits for a server that cannot be reached yet.
func begin(ctx context.Context, db Beginner, f func(pgx.Tx) error) error {
	var tx pgx.Tx
	err := reached(ctx, db, slog.Default(), reach.Timeout, func(ctx context.Context) (err error) {
		tx, err = db.BeginTx(ctx, readCommitted)
		return err
	})
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }() // after a commit it does nothing
	if err := f(tx); err != nil {
		return err
	}
	return tx.Commit(ctx)
}

func migrate(ctx context.Context, tx pgx.Tx, schema string) error {
	if _, err := tx.Exec(ctx, "select pg_advisory_xact_lock($1::bigint)", migrationLock(schema)); err != nil {
		return err
	}
	var schemaExists, tableExists bool
	err := tx.QueryRow(ctx, `
		select exists (select from pg_catalog.pg_namespace where nspname = $1::text),
			exists (select from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = c.relnamespace
				where n.nspname = $1::text and c.relname = 'migration')`, schema).Scan(&schemaExists, &tableExists)
	if err != nil {
		return err
	}
	if !schemaExists { // "if not exists" would ask for the right to create it all the same
		if _, err := tx.Exec(ctx, "create schema "+quote(schema)); err != nil {
			return err
		}
	}
	version := 0
	if tableExists {
		err := tx.QueryRow(ctx, "select coalesce(max(version), 0) from "+quote(schema)+".migration").Scan(&version)
		if err != nil {
			return err
		}
	}
	if version > schemaVersion {
		return newer(version)
	}
	for _, m := range steps(schema)[version:] {
		if _, err := tx.Exec(ctx, m.SQL); err != nil {
			return fmt.Errorf("step %d, %s: %w", m.Version, m.Name, err)
		}
	}
	return nil
}

// migrationLock is the key of the advisory lock that lets one call migrate at a time.
func migrationLock(schema string) int64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte("epochfence migrate " + schema))
	return int64(h.Sum64())
}

// Grant lets role use a schema, "" for [DefaultSchema]: USAGE on it and EXECUTE
// on the functions that an application calls, nothing on the tables. It is
// repeated after a migration that adds functions, and needs the schema's owner.
func Grant(ctx context.Context, db Beginner, schema, role string) error {
	sql, err := GrantSQL(schema, role)
	if err != nil {
		return err
	}
	err = begin(ctx, db, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, sql)
		return err
	})
	if err != nil {
		return fmt.Errorf("pgsink: grant to role %s: %w", quote(role), explainServer(err))
	}
	return nil
}

// GrantSQL is what [Grant] runs, for a migration tool of your own.
func GrantSQL(schema, role string) (string, error) {
	schema, err := checkSchema(schema)
	if err != nil {
		return "", err
	}
	if err := checkIdentifier("role", role); err != nil {
		return "", err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "grant usage on schema %s to %s;\n", quote(schema), quote(role))
	b.WriteString("grant execute on function")
	for i, f := range appFunctions {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, "\n    %s.%s", quote(schema), f)
	}
	fmt.Fprintf(&b, "\nto %s;\n", quote(role))
	return b.String(), nil
}

func checkSchema(schema string) (string, error) {
	if schema == "" {
		return DefaultSchema, nil
	}
	return schema, checkIdentifier("schema", schema)
}

func checkIdentifier(what, name string) error {
	if err := checkText(name); err != nil {
		return fmt.Errorf("pgsink: %s name %q %w", what, name, err)
	}
	if name == "" {
		return fmt.Errorf("pgsink: %s name is empty", what)
	}
	if len(name) > maxIdentifier {
		return fmt.Errorf("pgsink: %s name %q has %d bytes; PostgreSQL keeps %d", what, name, len(name), maxIdentifier)
	}
	return nil
}

func quote(identifier string) string { return pgx.Identifier{identifier}.Sanitize() }

// What can be wrong with a schema.
var (
	// ErrNotMigrated: the schema does not exist or is empty. Run [Migrate].
	ErrNotMigrated = errors.New("schema is not migrated: run pgsink.Migrate, or the SQL of pgsink.Migrations")

	// ErrSchemaOlder: the schema lacks migrations. Run [Migrate].
	ErrSchemaOlder = errors.New("schema is older than this program: run pgsink.Migrate, or the SQL of pgsink.Migrations")

	// ErrSchemaNewer: the schema was migrated by a newer version of this
	// package. Update the program.
	ErrSchemaNewer = errors.New("schema is newer than this program: update the program")

	// ErrPermission: the role may not use the schema or execute its
	// functions. Run [Grant].
	ErrPermission = errors.New("role lacks a permission: run pgsink.Grant, or the SQL of pgsink.GrantSQL, as the schema's owner")
)

func newer(version int) error {
	return fmt.Errorf("%w: it is at version %d, this program knows %d", ErrSchemaNewer, version, schemaVersion)
}
