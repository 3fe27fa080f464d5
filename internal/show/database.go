package show

import (
	"context"
	"database/sql"
	"fmt"
	"net/url"
	"path/filepath"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	_ "modernc.org/sqlite" // for openSQLite
)

const (
	// Reachable limits how long a service may take to answer at the start.
	Reachable = 5 * time.Second

	// Preparing limits how long making or removing topics and tables may take.
	Preparing = 30 * time.Second
)

// Database is a column's database: a SQLite file, or a schema in PostgreSQL. Statements with
// parameters $1, $2, … run in both.
type Database struct {
	*sql.DB
	Pool   *pgxpool.Pool // nil in SQLite
	URL    string        // postgres://, or the path of the SQLite file
	Schema string        // in PostgreSQL, "" in SQLite
}

// NewDatabase creates the database of a column.
func NewDatabase(ctx context.Context, s *Settings, id string) (*Database, error) {
	if s.Database == "" {
		return OpenDatabase(ctx, filepath.Join(s.Dir, id+".db"), "")
	}
	ctx, cancel := context.WithTimeout(ctx, Preparing)
	defer cancel()
	d, err := OpenDatabase(ctx, s.Database, strings.ReplaceAll(id, "-", "_"))
	if err != nil {
		return nil, err
	}
	if _, err := d.ExecContext(ctx, "CREATE SCHEMA "+pgx.Identifier{d.Schema}.Sanitize()); err != nil {
		d.Close()
		return nil, fmt.Errorf("-database: create a schema: %w", err)
	}
	return d, nil
}

// OpenDatabase opens the database that a column has made. A SQLite file is shared by several
// processes: a transaction takes the write lock at its beginning, and waits for others' locks.
func OpenDatabase(ctx context.Context, url, schema string) (*Database, error) {
	if !IsPostgres(url) {
		db, err := openSQLite(url, 30*time.Second)
		return &Database{DB: db, URL: url}, err
	}
	c, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, fmt.Errorf("-database: %w", err)
	}
	c.ConnConfig.ConnectTimeout = Reachable
	c.ConnConfig.RuntimeParams["search_path"] = pgx.Identifier{schema}.Sanitize()
	pool, err := pgxpool.NewWithConfig(ctx, c)
	if err != nil {
		return nil, fmt.Errorf("-database: %w", err)
	}
	return &Database{stdlib.OpenDBFromPool(pool), pool, url, schema}, nil
}

func openSQLite(path string, wait time.Duration) (*sql.DB, error) {
	return sql.Open("sqlite", fmt.Sprintf("file:%s?_txlock=immediate&_pragma=busy_timeout(%d)&_pragma=journal_mode(WAL)&_pragma=synchronous(NORMAL)",
		(&url.URL{Path: path}).EscapedPath(), wait.Milliseconds()))
}

// Counter returns the type of a column that numbers the rows in the order of their writes.
func (d *Database) Counter() string {
	if d.Pool == nil {
		return "INTEGER PRIMARY KEY AUTOINCREMENT"
	}
	return "BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY"
}

// Count returns the number that a query selects.
func (d *Database) Count(ctx context.Context, query string, args ...any) (n int, err error) {
	err = d.QueryRowContext(ctx, query, args...).Scan(&n)
	return n, err
}

// Scan copies the columns of a row.
type Scan = func(into ...any) error

// Each calls row for each row of a query.
func (d *Database) Each(ctx context.Context, query string, row func(Scan) error) error {
	rows, err := d.QueryContext(ctx, query)
	if err != nil {
		return err
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		if err := row(rows.Scan); err != nil {
			return err
		}
	}
	return rows.Err()
}

// unlocked reports whether the database can be written to at this moment. In PostgreSQL it always
// can.
func (d *Database) unlocked(ctx context.Context) bool {
	if d.Pool != nil {
		return true
	}
	db, err := openSQLite(d.URL, 2*time.Second)
	if err != nil {
		return false
	}
	defer func() { _ = db.Close() }()
	tx, err := db.BeginTx(ctx, nil)
	return err == nil && tx.Rollback() == nil
}

// Drop drops the schema in PostgreSQL, and closes. A SQLite file goes with its directory.
func (d *Database) Drop() error {
	if d == nil {
		return nil
	}
	defer d.Close()
	if d.Pool == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), Preparing)
	defer cancel()
	if _, err := d.ExecContext(ctx, "DROP SCHEMA IF EXISTS "+pgx.Identifier{d.Schema}.Sanitize()+" CASCADE"); err != nil {
		return fmt.Errorf("drop schema %s: %w", d.Schema, err)
	}
	return nil
}

// Close closes the connections.
func (d *Database) Close() {
	_ = d.DB.Close()
	if d.Pool != nil {
		d.Pool.Close()
	}
}
