package sqloutbox

import (
	"cmp"
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"regexp"
	"strings"
	"time"
)

// Options say how a [Store] works. The zero Options work.
type Options struct {
	// TablePrefix begins the names of the tables: letters, digits and
	// underscores, at most 32. Empty means "epochfence_outbox_".
	TablePrefix string
}

var tablePrefix = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,31}$`)

func (o Options) withDefaults() (Options, error) {
	o.TablePrefix = cmp.Or(o.TablePrefix, "epochfence_outbox_")
	if !tablePrefix.MatchString(o.TablePrefix) {
		return o, fmt.Errorf("sqloutbox: Options.TablePrefix is %q; want a letter or underscore, then letters, digits and underscores, at most 32 in all", o.TablePrefix)
	}
	return o, nil
}

// Migration is one version of the schema.
type Migration struct {
	// Version counts from 1. The script brings the schema here from the
	// version before.
	Version int

	// SQL is a script of several statements, to be run in one transaction.
	SQL string
}

//go:embed migrations/sqlite/*.sql
var migrationFiles embed.FS

// Migrations returns the schema for SQLite as scripts for a migration tool of
// your own. Whoever uses [Migrate] has no need of them.
func Migrations(o Options) ([]Migration, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	names, err := fs.Glob(migrationFiles, "migrations/sqlite/*.sql") // sorted
	if err != nil {
		return nil, err
	}
	var ms []Migration
	for i, name := range names {
		v := i + 1
		script, err := migrationFiles.ReadFile(name)
		if err != nil {
			return nil, err
		}
		text := strings.ReplaceAll(string(script), "{{prefix}}", o.TablePrefix)
		// The schema says its own version, so that a foreign tool need not.
		if v == 1 {
			text += fmt.Sprintf("\nINSERT INTO %sschema (version) VALUES (1);\n", o.TablePrefix)
		} else {
			text += fmt.Sprintf("\nUPDATE %sschema SET version = %d;\n", o.TablePrefix, v)
		}
		ms = append(ms, Migration{v, text})
	}
	return ms, nil
}

// lockTimeout bounds the wait of Migrate for the write lock, beside its context.
const lockTimeout = 30 * time.Second

// Migrate makes the tables in a SQLite database, or brings them up to date.
// Several processes may call it at once; one does the work. A schema newer than
// this program knows is an error.
func Migrate(ctx context.Context, db *sql.DB, o Options) error {
	ms, err := Migrations(o)
	if err != nil {
		return err
	}
	o, _ = o.withDefaults() // as Migrations did
	ctx, cancel := context.WithTimeout(ctx, lockTimeout)
	defer cancel()
	var conn *sql.Conn
	err = patiently(ctx, func() (err error) { // its PRAGMAs may be in someone's way
		conn, err = db.Conn(ctx)
		return err
	})
	if err != nil {
		return fmt.Errorf("sqloutbox: migrate: connect: %w", err)
	}
	defer func() { _ = conn.Close() }()
	if err := migrate(ctx, conn, o, ms); err != nil {
		_, _ = conn.ExecContext(context.WithoutCancel(ctx), `ROLLBACK`)
		return fmt.Errorf("sqloutbox: migrate: %w", err)
	}
	return nil
}

func migrate(ctx context.Context, conn *sql.Conn, o Options, ms []Migration) error {
	err := patiently(ctx, func() error {
		_, err := conn.ExecContext(ctx, `BEGIN IMMEDIATE`)
		return err
	})
	if err != nil {
		return err
	}
	v, err := version(ctx, conn, o)
	if err != nil {
		return err
	}
	if v > len(ms) {
		return versionError(o, v)
	}
	for _, m := range ms[v:] {
		if _, err := conn.ExecContext(ctx, m.SQL); err != nil {
			return fmt.Errorf("to version %d: %w", m.Version, err)
		}
	}
	_, err = conn.ExecContext(ctx, `COMMIT`)
	return err
}

// patiently does what another connection may be in the way of, until it is not
// or ctx ends.
func patiently(ctx context.Context, do func() error) error {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		err := do()
		var e interface{ Code() int }
		if err == nil || !errors.As(err, &e) || e.Code()&0xff != sqliteBusy {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("the write lock was not free: %w: %w", ctx.Err(), err)
		}
	}
}

const sqliteBusy = 5 // https://www.sqlite.org/rescode.html

type querier interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// version is the schema's, or 0 where there is none.
func version(ctx context.Context, q querier, o Options) (v int, err error) {
	var there bool
	err = q.QueryRowContext(ctx, `SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name = ? COLLATE NOCASE`, o.TablePrefix+"schema").Scan(&there)
	if err == nil && there {
		err = q.QueryRowContext(ctx, `SELECT version FROM `+o.TablePrefix+`schema`).Scan(&v)
	}
	if err != nil {
		return 0, fmt.Errorf("read the version of the schema: %w", err)
	}
	return v, nil
}

func versionError(o Options, v int) error {
	ms, _ := Migrations(o)
	switch {
	case v == 0:
		return fmt.Errorf("there are no tables %s*; call sqloutbox.Migrate, or run the scripts of sqloutbox.Migrations", o.TablePrefix)
	case v < len(ms):
		return fmt.Errorf("the tables %s* are of version %d, this program needs %d; call sqloutbox.Migrate", o.TablePrefix, v, len(ms))
	default:
		return fmt.Errorf("the tables %s* are of version %d, this program knows none above %d; use a newer program", o.TablePrefix, v, len(ms))
	}
}
