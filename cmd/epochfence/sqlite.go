package main

import (
	"context"
	"database/sql"
	"fmt"
	"net/url"
	"os"
	"strings"

	_ "modernc.org/sqlite" // the driver

	"github.com/epochfence/epochfence/sinks/sqlsink"
)

// This file opens and examines the sink in SQLite.

type sqlite struct{ *sqlDatabase }

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
	return &sqlite{&sqlDatabase{db: db, dialect: sqlsink.SQLite, sink: sqlsink.Options{TablePrefix: f.schema, LockTimeout: f.timeout},
		there: "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = ?",
		alive: "SELECT coalesce(json_extract(body, '$.version'), ''), count(*) FROM %s" +
			" WHERE kind = 'process' AND changed_at > strftime('%%Y-%%m-%%dT%%H:%%M:%%fZ', 'now', '-1 minute') GROUP BY 1"}}, nil
}

func (s *sqlite) grant(string, roleKind) (string, error) {
	return "", usage("SQLite has no roles: who may open the file may do everything")
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
