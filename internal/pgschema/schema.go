// Package pgschema keeps the versions of a package's tables and functions in a schema of
// PostgreSQL's, through pgx: it migrates under a lock, checks the version, makes
// names fit for SQL, and waits for a server that cannot be reached yet.
package pgschema

import (
	"context"
	"fmt"
	"io/fs"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/epochfence/epochfence/internal/sqlschema"
	"github.com/epochfence/epochfence/migrations"
)

// DB is a [pgx.Conn] or a pool.
type DB interface {
	BeginTx(ctx context.Context, options pgx.TxOptions) (pgx.Tx, error)
}

// ReadCommitted is the isolation that statements after a lock rely on, whatever
// the default of the database: they see what the holder before us did.
var ReadCommitted = pgx.TxOptions{IsoLevel: pgx.ReadCommitted}

// Schema is what one package keeps in a schema, beside which there may be others'.
type Schema struct {
	Of      string                 // the package, whose name begins errors
	Name    string                 // of the schema in the database
	Table   string                 // holds a row for each version
	Scripts []migrations.Migration // name the schema as they were read, and record their version
	Remedy  sqlschema.Remedy
}

// Read reads the scripts of a package, from a directory in which the schema's name is that of
// written, in quotes, and returns them for the schema named name.
func Read(files fs.FS, dir, of, written, name string) []migrations.Migration {
	all := sqlschema.Read(files, dir, of)
	for i, m := range all {
		all[i].SQL = strings.ReplaceAll(m.SQL, `"`+written+`"`, Quote(name))
	}
	return all
}

// Migrations are the scripts for a migration tool of the user's. The first creates the
// schema unless it exists.
func (s Schema) Migrations() []migrations.Migration {
	all := append([]migrations.Migration(nil), s.Scripts...)
	all[0].SQL = "create schema if not exists " + Quote(s.Name) + ";\n\n" + all[0].SQL
	return all
}

// Migrate brings the schema up to date in one transaction. Of concurrent calls one does it
// and the others wait.
func (s Schema) Migrate(ctx context.Context, db DB, w Wait) error {
	if err := w.InTx(ctx, db, func(tx pgx.Tx) error { return s.migrate(ctx, tx) }); err != nil {
		return fmt.Errorf("%s: migrate schema %s: %w", s.Of, Quote(s.Name), err)
	}
	return nil
}

// Grant runs sql, which lets role use the schema.
func (s Schema) Grant(ctx context.Context, db DB, w Wait, role, sql string) error {
	err := w.InTx(ctx, db, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, sql)
		return err
	})
	if err != nil {
		return fmt.Errorf("%s: grant schema %s to role %s: %w", s.Of, Quote(s.Name), Quote(role), err)
	}
	return nil
}

func (s Schema) migrate(ctx context.Context, tx pgx.Tx) error {
	// One lock for all that is in the schema, which may have to be created.
	if _, err := tx.Exec(ctx, "select pg_advisory_xact_lock(hashtextextended($1::text, 0))", "epochfence migrate "+s.Name); err != nil {
		return err
	}
	var exists bool
	if err := tx.QueryRow(ctx, "select exists (select from pg_catalog.pg_namespace where nspname = $1::text)", s.Name).Scan(&exists); err != nil {
		return err
	}
	if !exists { // "if not exists" would ask for the right to create it all the same
		if _, err := tx.Exec(ctx, "create schema "+Quote(s.Name)); err != nil {
			return err
		}
	}
	have, err := s.Version(ctx, tx)
	if err != nil {
		return err
	}
	return s.Remedy.Upgrade(have, s.Scripts, func(script string) error {
		_, err := tx.Exec(ctx, script)
		return err
	})
}

// Version is the schema's, or 0 where there is none.
func (s Schema) Version(ctx context.Context, tx pgx.Tx) (v int, err error) {
	var there bool
	// to_regclass would not do: it can continue answering what it did before another
	// migration, from a cache that nothing has brought up to date.
	err = tx.QueryRow(ctx, `select exists (select from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = c.relnamespace
		where n.nspname = $1::text and c.relname = $2::text)`, s.Name, s.Table).Scan(&there)
	if err == nil && there {
		err = tx.QueryRow(ctx, "select coalesce(max(version), 0) from "+Quote(s.Name)+"."+Quote(s.Table)).Scan(&v)
	}
	if err != nil {
		return 0, fmt.Errorf("read the version of the schema: %w", err)
	}
	return v, nil
}

// Check refuses a schema of another version than the program's.
func (s Schema) Check(have int) error { return s.Remedy.Check(have, len(s.Scripts)) }
