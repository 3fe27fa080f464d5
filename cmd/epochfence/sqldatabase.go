package main

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"strings"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/sql/sqlschema"
	"github.com/epochfence/epochfence/operate"
	"github.com/epochfence/epochfence/sinks/sqlsink"
)

// This file is the sink through database/sql, as database.go wants it. sqlite.go and mariadb.go have what
// differs.

type sqlDatabase struct {
	db      *sql.DB
	dialect sqlsink.Dialect
	sink    sqlsink.Options

	there string // counts the tables of a name
	alive string // the processes of the last minute by version, with %s for the table
}

func (s *sqlDatabase) close() { _ = s.db.Close() }

func (s *sqlDatabase) operator(ctx context.Context) (operate.Operator, error) {
	return sqlsink.OpenOperator(ctx, s.db, s.dialect, s.sink)
}

func (s *sqlDatabase) tables(ctx context.Context) (*tables, error) {
	scripts, err := sqlsink.Migrations(s.dialect, s.sink)
	if err != nil {
		return nil, err
	}
	t := &tables{where: cmp.Or(s.sink.TablePrefix, sqlschema.DefaultPrefix), scripts: scripts,
		migrate: func(ctx context.Context) error { return sqlsink.Migrate(ctx, s.db, s.dialect, s.sink) }}
	if t.have, err = s.version(ctx, t.where+"migration"); err != nil {
		return nil, fmt.Errorf("version of the tables: %w", err)
	}
	if t.have > 0 {
		t.alive = s.processes(ctx, t.where+"ledger")
	}
	return t, nil
}

// processes reads the table, because an operator cannot be opened on tables that are older.
func (s *sqlDatabase) processes(ctx context.Context, ledger string) map[string]int {
	rows, err := s.db.QueryContext(ctx, fmt.Sprintf(s.alive, ledger))
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
func (s *sqlDatabase) version(ctx context.Context, table string) (v int, err error) {
	err = s.db.QueryRowContext(ctx, s.there, table).Scan(&v)
	if err == nil && v > 0 {
		err = s.db.QueryRowContext(ctx, "SELECT coalesce(max(version), 0) FROM "+table).Scan(&v)
	}
	return v, err
}

// run sends a line at a time: a driver may take a single statement.
func (s *sqlDatabase) run(ctx context.Context, script string) error {
	for statement := range strings.SplitSeq(script, "\n") {
		if _, err := s.db.ExecContext(ctx, statement); err != nil {
			return err
		}
	}
	return nil
}

func (s *sqlDatabase) drill(ctx context.Context) ([]trial, error) {
	sink, err := sqlsink.Open(ctx, s.db, s.dialect, s.sink)
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
