package main

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"net/url"
	"os"
	"strings"

	_ "modernc.org/sqlite" // the driver

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/sql/sqlschema"
	"github.com/epochfence/epochfence/operate"
	"github.com/epochfence/epochfence/sinks/sqlsink"
)

// This file is the sink in SQLite, as database.go wants it.

type sqlite struct {
	db   *sql.DB
	sink sqlsink.Options
}

// openSQLite opens an existing file, or creates it if it may.
func openSQLite(f flags, create bool) (*sqlite, error) {
	path, query, _ := strings.Cut(strings.TrimPrefix(f.database, "file:"), "?")
	options, err := url.ParseQuery(query)
	if err != nil {
		return nil, usage("--database: %w", err)
	}
	name, err := url.PathUnescape(path)
	if err != nil {
		return nil, usage("--database: %w", err)
	}
	if _, err := os.Stat(name); err != nil && !create {
		return nil, fmt.Errorf("--database: %w", err)
	}
	options.Add("_pragma", "journal_mode(wal)")
	db, err := sql.Open("sqlite", "file:"+path+"?"+options.Encode())
	if err != nil {
		return nil, err
	}
	return &sqlite{db: db, sink: sqlsink.Options{TablePrefix: f.schema, LockTimeout: f.timeout}}, nil
}

func (s *sqlite) close() { _ = s.db.Close() }

func (s *sqlite) operator(ctx context.Context) (operate.Operator, error) {
	return sqlsink.OpenOperator(ctx, s.db, sqlsink.SQLite, s.sink)
}

func (s *sqlite) tables(ctx context.Context) (*tables, error) {
	scripts, err := sqlsink.Migrations(sqlsink.SQLite, s.sink)
	if err != nil {
		return nil, err
	}
	t := &tables{where: cmp.Or(s.sink.TablePrefix, sqlschema.DefaultPrefix), scripts: scripts,
		migrate: func(ctx context.Context) error { return sqlsink.Migrate(ctx, s.db, sqlsink.SQLite, s.sink) }}
	if t.have, err = s.version(ctx, t.where+"migration"); err != nil {
		return nil, fmt.Errorf("version of the tables: %w", err)
	}
	if t.have > 0 {
		t.alive = s.alive(ctx, t.where+"ledger")
	}
	return t, nil
}

// alive reads the table, because an operator cannot be opened on tables that are older.
func (s *sqlite) alive(ctx context.Context, ledger string) map[string]int {
	rows, err := s.db.QueryContext(ctx, "SELECT coalesce(json_extract(body, '$.version'), ''), count(*) FROM "+ledger+
		" WHERE kind = 'process' AND changed_at > strftime('%Y-%m-%dT%H:%M:%fZ', 'now', '-1 minute') GROUP BY 1")
	if err != nil {
		return nil
	}
	defer func() { _ = rows.Close() }()
	alive := map[string]int{}
	for rows.Next() {
		var version string
		var n int
		if err := rows.Scan(&version, &n); err != nil {
			return nil
		}
		alive[version] = n
	}
	if rows.Err() != nil {
		return nil
	}
	return alive
}

// version returns the version in the table of migrations, or zero. Migrations has checked
// that the table's name consists of letters, digits and underscores.
func (s *sqlite) version(ctx context.Context, table string) (v int, err error) {
	err = s.db.QueryRowContext(ctx, "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = ?", table).Scan(&v)
	if err == nil && v > 0 {
		err = s.db.QueryRowContext(ctx, "SELECT coalesce(max(version), 0) FROM "+table).Scan(&v)
	}
	return v, err
}

func (s *sqlite) grant(string, roleKind) (string, error) {
	return "", usage("SQLite has no roles: who may open the file may do everything")
}

func (s *sqlite) run(ctx context.Context, script string) error {
	_, err := s.db.ExecContext(ctx, script)
	return err
}

func (s *sqlite) drill(ctx context.Context) ([]trial, error) {
	sink, err := sqlsink.Open(ctx, s.db, sqlsink.SQLite, s.sink)
	if err != nil {
		return nil, err
	}
	op, err := s.operator(ctx)
	if err != nil {
		return nil, err
	}
	d := &drill[*sqlsink.Tx]{sink: sink, op: op, put: func(ctx context.Context, tx *sqlsink.Tx, m epoch.Message, e epoch.Epoch) error {
		return sink.DeadLetter(ctx, tx, m, e, errDrill)
	}}
	return d.run(ctx)
}

func (s *sqlite) examine(ctx context.Context) []finding {
	var version, mode string
	if err := s.db.QueryRowContext(ctx, "SELECT sqlite_version()").Scan(&version); err != nil {
		return []finding{{Check: "database", Status: bad, Detail: err.Error()}}
	}
	found := []finding{{Check: "database", Status: ok, Detail: "SQLite " + version}}
	if err := s.db.QueryRowContext(ctx, "PRAGMA journal_mode").Scan(&mode); err != nil || mode != "wal" {
		found = append(found, finding{Check: "journal", Status: bad, Detail: fmt.Sprintf("the journal mode is %q", mode), Remedy: "PRAGMA journal_mode = wal"})
	}
	return found
}
