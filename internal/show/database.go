package show

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	_ "modernc.org/sqlite" // for OpenSQLite
)

const (
	// Reachable limits how long a service may take to answer at the start.
	Reachable = 5 * time.Second

	// Preparing limits how long making or removing topics and tables may take.
	Preparing = 30 * time.Second
)

// Database is the parent's access to one column's tables.
type Database struct {
	*sql.DB
	Pool   *pgxpool.Pool // nil in SQLite
	Path   string        // of the SQLite file, or the postgres:// URL
	Schema string        // in PostgreSQL, "" in SQLite
}

// NewDatabase opens a new SQLite file, or creates a schema in PostgreSQL, and calls tables to fill
// it. After an error it leaves nothing behind.
func NewDatabase(ctx context.Context, path, schema string, tables func(context.Context, *Database) error) (*Database, error) {
	ctx, cancel := context.WithTimeout(ctx, Preparing)
	defer cancel()
	d := &Database{Path: path}
	var err error
	if IsPostgres(path) {
		err = d.createSchema(ctx, schema)
	} else {
		d.DB, err = OpenSQLite(path)
	}
	if err != nil {
		return nil, err
	}
	if err := tables(ctx, d); err != nil {
		return nil, errors.Join(err, d.Drop())
	}
	return d, nil
}

func (d *Database) createSchema(ctx context.Context, schema string) (err error) {
	if d.Pool, err = OpenPostgres(ctx, d.Path, schema); err != nil {
		return err
	}
	if _, err := d.Pool.Exec(ctx, "CREATE SCHEMA "+pgx.Identifier{schema}.Sanitize()); err != nil {
		d.Pool.Close()
		return fmt.Errorf("create a schema of our own in the database%s: %w", permission(err), err)
	}
	d.DB, d.Schema = stdlib.OpenDBFromPool(d.Pool), schema
	return nil
}

// permission names the privilege that is missing.
func permission(err error) string {
	var pg *pgconn.PgError
	if errors.As(err, &pg) && pg.Code == "42501" {
		return " (GRANT CREATE ON DATABASE … TO the role, or use another)"
	}
	return ""
}

// Drop drops the schema in PostgreSQL, and closes. A SQLite file stays.
func (d *Database) Drop() error {
	defer d.Close()
	if d.Schema == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), Preparing)
	defer cancel()
	if _, err := d.ExecContext(ctx, "DROP SCHEMA IF EXISTS "+pgx.Identifier{d.Schema}.Sanitize()+" CASCADE"); err != nil {
		return fmt.Errorf("drop schema %s: %w", d.Schema, err)
	}
	return nil
}

// Close closes the connections and leaves the tables.
func (d *Database) Close() {
	_ = d.DB.Close()
	if d.Pool != nil {
		d.Pool.Close()
	}
}

// String says where the tables are.
func (d *Database) String() string {
	if d.Schema != "" {
		return "schema " + d.Schema
	}
	return d.Path
}

// IsPostgres reports whether database is a PostgreSQL URL.
func IsPostgres(database string) bool {
	return strings.HasPrefix(database, "postgres://") || strings.HasPrefix(database, "postgresql://")
}

// OpenSQLite opens a file that several processes share. A transaction takes the write lock at its
// beginning, and waits for other processes' locks.
func OpenSQLite(path string) (*sql.DB, error) {
	db, err := sql.Open("sqlite", "file:"+(&url.URL{Path: path}).EscapedPath()+
		"?_txlock=immediate&_pragma=busy_timeout(30000)&_pragma=journal_mode(WAL)&_pragma=synchronous(NORMAL)")
	if err != nil {
		return nil, fmt.Errorf("open SQLite %s: %w", path, err)
	}
	return db, nil
}

// OpenPostgres returns a pool with schema as its search path.
func OpenPostgres(ctx context.Context, url, schema string) (*pgxpool.Pool, error) {
	c, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, fmt.Errorf("-database: %w", err)
	}
	c.ConnConfig.RuntimeParams["search_path"] = pgx.Identifier{schema}.Sanitize()
	pool, err := pgxpool.NewWithConfig(ctx, c)
	if err != nil {
		return nil, fmt.Errorf("-database: %w", err)
	}
	return pool, nil
}

// PingPostgres checks that the server answers and accepts the login.
func PingPostgres(ctx context.Context, url string) error {
	pool, err := OpenPostgres(ctx, url, "public")
	if err != nil {
		return err
	}
	defer pool.Close()
	ctx, cancel := context.WithTimeout(ctx, Reachable)
	defer cancel()
	if err := pool.Ping(ctx); err != nil {
		if ctx.Err() != nil {
			return fmt.Errorf("-database: no answer from PostgreSQL within %v: %w", Reachable, err)
		}
		return fmt.Errorf("-database: cannot reach PostgreSQL; is it running, and does it let us in? %w", err)
	}
	return nil
}
