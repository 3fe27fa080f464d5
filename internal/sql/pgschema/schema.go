// Package pgschema versions a package's tables and functions in a PostgreSQL schema, through pgx.
// It migrates under a lock, checks the version, quotes names, and waits for a server that cannot be
// reached yet.
package pgschema

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/epochfence/epochfence/internal/sql/sqlschema"
	"github.com/epochfence/epochfence/migrations"
)

// DB is a [pgx.Conn] or a pool.
type DB interface {
	BeginTx(ctx context.Context, options pgx.TxOptions) (pgx.Tx, error)
}

// ReadCommitted is the isolation that statements after a lock need, whatever the database's default
// is: they see what the lock's holder before us did.
var ReadCommitted = pgx.TxOptions{IsoLevel: pgx.ReadCommitted}

// Schema is one package's share of a schema, in which other packages may have theirs.
type Schema struct {
	Of      string                 // the package's name, with which errors begin
	Name    string                 // of the schema in the database
	Table   string                 // holds a row for each version
	Scripts []migrations.Migration // with the schema's name filled in; each records its version
	Remedy  sqlschema.Remedy
}

// Read reads a package's scripts, and replaces the schema name written, in quotes, by name.
func Read(files fs.FS, dir, of, written, name string) []migrations.Migration {
	all := sqlschema.Read(files, dir, of)
	for i, m := range all {
		all[i].SQL = strings.ReplaceAll(m.SQL, `"`+written+`"`, Quote(name))
	}
	return all
}

// Migrations returns the scripts for the user's migration tool. The first one creates the schema if
// it does not exist.
func (s Schema) Migrations() []migrations.Migration {
	all := s.marked()
	all[0].SQL = "create schema if not exists " + Quote(s.Name) + ";\n\n" + all[0].SQL
	return all
}

// Migrate brings the schema up to date in one transaction. Concurrent calls wait for each other.
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
	// One lock covers all packages in the schema, which may not exist yet.
	if _, err := tx.Exec(ctx, "select pg_advisory_xact_lock(hashtextextended($1::text, 0))", "epochfence migrate "+s.Name); err != nil {
		return err
	}
	var exists bool
	if err := tx.QueryRow(ctx, "select exists (select from pg_catalog.pg_namespace where nspname = $1::text)", s.Name).Scan(&exists); err != nil {
		return err
	}
	if !exists { // with "if not exists" the server would still require the privilege to create it
		if _, err := tx.Exec(ctx, "create schema "+Quote(s.Name)); err != nil {
			return err
		}
	}
	have, err := s.Version(ctx, tx)
	if err != nil {
		return err
	}
	if err := s.CheckOrigin(ctx, tx, have); err != nil {
		return err
	}
	return s.Remedy.Upgrade(have, s.marked(), func(script string) error {
		_, err := tx.Exec(ctx, script)
		return err
	})
}

// Version returns the schema's version, or 0 if there is none.
func (s Schema) Version(ctx context.Context, tx pgx.Tx) (v int, err error) {
	var there bool
	// to_regclass would not do: within a transaction, its stale cache can return the answer from
	// before another migration.
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

// marked returns the scripts, each of which also leaves a comment on the table of versions: from which
// text the tables are. Every role can read it.
func (s Schema) marked() []migrations.Migration {
	all := slices.Clone(s.Scripts)
	for i, mark := range s.marks() {
		all[i].SQL += fmt.Sprintf("\ncomment on table %s.%s is '%s';\n", Quote(s.Name), Quote(s.Table), mark)
	}
	return all
}

// marks name the text of the scripts up to each version, whatever the schema's name, remarks and spaces.
func (s Schema) marks() (all []string) {
	sum := sha256.New()
	for i, m := range s.Scripts {
		for line := range strings.Lines(strings.ReplaceAll(m.SQL, Quote(s.Name), `""`)) {
			code, _, _ := strings.Cut(line, "--")
			for _, word := range strings.Fields(code) {
				_, _ = io.WriteString(sum, word+" ")
			}
		}
		all = append(all, fmt.Sprintf("epochfence %s %d, %x", s.Of, i+1, sum.Sum(nil)[:8]))
	}
	return all
}

// CheckOrigin returns an error if the tables of a version that the program knows are from scripts of
// another text: before a release, a version's can change.
func (s Schema) CheckOrigin(ctx context.Context, db interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}, have int) error {
	if have < 1 || have > len(s.Scripts) {
		return nil
	}
	var mark string
	err := db.QueryRow(ctx, `select coalesce(pg_catalog.obj_description(c.oid, 'pg_class'), '') from pg_catalog.pg_class c
		join pg_catalog.pg_namespace n on n.oid = c.relnamespace where n.nspname = $1::text and c.relname = $2::text`, s.Name, s.Table).Scan(&mark)
	switch {
	case err != nil:
		return fmt.Errorf("read of which commit the schema is: %w", err)
	case mark != s.marks()[have-1]:
		return fmt.Errorf("the tables have version %d of another commit than this program, and no migration leads from there: replace the schema, as docs/upgrading.md says", have)
	}
	return nil
}

// Check returns an error unless the schema has the program's version.
func (s Schema) Check(have int) error { return s.Remedy.Check(have, len(s.Scripts)) }
