// Package pgschema has the one schema of epochfence in PostgreSQL, through pgx: the tables and functions of
// fences, of the rows of operators, of the outbox and of items. It migrates under a lock, checks the version,
// quotes names, and waits for a server that cannot be reached yet. Package pgsink has what users call.
package pgschema

import (
	"bytes"
	"context"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/sql/sqlschema"
	"github.com/epochfence/epochfence/internal/waits"
	"github.com/epochfence/epochfence/migrations"
)

// DefaultName is the name of the schema unless an option has another.
const DefaultName = "epochfence"

// Remedy is what a user runs to migrate.
const Remedy = sqlschema.Remedy("pgsink.Migrate, epochfence migrate up, or the SQL of pgsink.Migrations")

// table holds a row for each version.
const table = "migration"

//go:embed migrations/*.sql
var files embed.FS

// DB is a [pgx.Conn] or a pool.
type DB interface {
	BeginTx(ctx context.Context, options pgx.TxOptions) (pgx.Tx, error)
}

// ReadCommitted is the isolation that statements after a lock need, whatever the database's default
// is: they see what the lock's holder before us did.
var ReadCommitted = pgx.TxOptions{IsoLevel: pgx.ReadCommitted}

// Schema is the schema under a name.
type Schema struct {
	Of   string // the package that is asked, with which errors begin
	Name string // in the database
}

// scripts returns the scripts with the schema's name filled in. Each records its version.
func (s Schema) scripts() []migrations.Migration {
	all := sqlschema.Read(files, "migrations", "pgsink")
	for i, m := range all {
		all[i].SQL = strings.ReplaceAll(m.SQL, `"`+DefaultName+`"`, Quote(s.Name))
	}
	return all
}

// Migrations returns the scripts for the user's migration tool. The first one creates the schema if
// it does not exist.
func (s Schema) Migrations() []migrations.Migration {
	all := s.scripts()
	all[0].SQL = "create schema if not exists " + Quote(s.Name) + ";\n\n" + all[0].SQL
	return all
}

// lockTimeout limits how long a migration waits for a table, with everybody else behind it.
const lockTimeout = "2s"

// Migrate brings the schema up to date in one transaction. Concurrent calls wait for each other. While a
// table is in use for longer than lockTimeout, it lets others go first, and tries again for as long as w waits.
func (s Schema) Migrate(ctx context.Context, db DB, w Wait) error {
	since := time.Now()
	for {
		err := w.InTx(ctx, db, func(tx pgx.Tx) error { return s.migrate(ctx, tx) })
		var pg *pgconn.PgError
		if err == nil {
			return nil
		}
		if !errors.As(err, &pg) || pg.Code != "55P03" || time.Since(since) > w.Timeout || !waits.Sleep(ctx, time.Second) {
			return fmt.Errorf("%s: migrate schema %s: %w", s.Of, Quote(s.Name), err)
		}
		w.Log.Info("a table is in use, and the migration tries again", "schema", s.Name, "err", err)
	}
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
	// The schema may not exist yet.
	if _, err := tx.Exec(ctx, "select pg_advisory_xact_lock(hashtextextended($1::text, 0))", "epochfence migrate "+s.Name); err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, "set local lock_timeout = '"+lockTimeout+"'"); err != nil {
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
	return Remedy.Upgrade(have, s.scripts(), func(script string) error {
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
		where n.nspname = $1::text and c.relname = $2::text)`, s.Name, table).Scan(&there)
	if err == nil && there {
		// Roles without privileges on the tables may call it.
		err = tx.QueryRow(ctx, "select "+Quote(s.Name)+".schema_version()").Scan(&v)
	}
	if err != nil {
		return 0, fmt.Errorf("read the version of the schema: %w", err)
	}
	return v, nil
}

// Ready returns an error unless the program works on the schema, and runs further in the same transaction.
func (s Schema) Ready(ctx context.Context, db DB, w Wait, further func(ctx context.Context, tx pgx.Tx) error) error {
	err := w.InTx(ctx, db, func(tx pgx.Tx) error {
		have, err := s.Version(ctx, tx)
		if err == nil {
			err = s.Check(have)
		}
		if err == nil {
			err = further(ctx, tx)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("%s: open schema %s: %w", s.Of, Quote(s.Name), err)
	}
	return nil
}

// Follows returns an error if new rows would come before stored ones.
func (s Schema) Follows(ctx context.Context, tx pgx.Tx) error {
	var behind *string
	err := tx.QueryRow(ctx, "select "+Quote(s.Name)+".identity_behind()").Scan(&behind)
	if err == nil && behind != nil {
		err = fmt.Errorf("%w: %s", epoch.ErrUnhealthy, *behind)
	}
	return err
}

// Known returns the last version that the program knows.
func (s Schema) Known() int { return len(s.scripts()) }

// Check returns an error unless the program works on a schema of this version.
func (s Schema) Check(have int) error { return Remedy.Check(have, len(s.scripts())) }

// maxIdentifier is the number of bytes that PostgreSQL keeps of an identifier. It cuts off the rest
// without an error.
const maxIdentifier = 63

// CheckIdentifier returns an error unless name can be the name of a schema or a role. option is the
// user's name for it.
func CheckIdentifier(option, name string) error {
	switch {
	case name == "":
		return fmt.Errorf("%s is empty", option)
	case !utf8.ValidString(name) || strings.Contains(name, "\x00"):
		return fmt.Errorf("%s %q is not UTF-8 without NUL", option, name)
	case len(name) > maxIdentifier:
		return fmt.Errorf("%s %q has %d bytes; PostgreSQL keeps %d", option, name, len(name), maxIdentifier)
	}
	return nil
}

// Quote quotes an identifier.
func Quote(name string) string { return pgx.Identifier{name}.Sanitize() }

type ownKey struct{}

// Own marks the statements that are sent with ctx through a handler's transaction as a package's
// own. A refusal by the package's tables is no message's fault. The mark passes through a
// transaction that a program has wrapped, and no program can set it.
func Own(ctx context.Context) context.Context { return context.WithValue(ctx, ownKey{}, true) }

// IsOwn reports whether [Own] has marked ctx.
func IsOwn(ctx context.Context) bool { return ctx.Value(ownKey{}) != nil }

// Texts is a statement that makes the server write values as pgx reads them until the end of the
// transaction, whatever is set for the role. It is for values that travel as text. A handler's
// transaction keeps its settings: there use [Bytea], and numbers for times.
const Texts = "select pg_catalog.set_config('datestyle', 'ISO', true), pg_catalog.set_config('bytea_output', 'hex', true)"

// Bytea scans a bytea in any format and under any bytea_output. NULL is nil.
type Bytea []byte

// ScanBytes implements [pgtype.BytesScanner].
func (b *Bytea) ScanBytes(v []byte) error {
	*b = bytes.Clone(v)
	return nil
}

// ScanText implements [pgtype.TextScanner].
func (b *Bytea) ScanText(v pgtype.Text) (err error) {
	if *b = nil; !v.Valid {
		return nil
	}
	if len(v.String) >= 2 && v.String[:2] == `\x` { // escape doubles a backslash
		*b, err = hex.DecodeString(v.String[2:])
		return err
	}
	*b = make([]byte, 0, len(v.String))
	for s := v.String; s != ""; {
		switch {
		case s[0] != '\\':
			*b, s = append(*b, s[0]), s[1:]
		case len(s) >= 2 && s[1] == '\\':
			*b, s = append(*b, '\\'), s[2:]
		default:
			octal, err := strconv.ParseUint(s[1:min(4, len(s))], 8, 8)
			if err != nil || len(s) < 4 {
				return fmt.Errorf("not a bytea: %.10q", s)
			}
			*b, s = append(*b, byte(octal)), s[4:]
		}
	}
	return nil
}
