package sqltx

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/sql/queue"
	"github.com/epochfence/epochfence/internal/sql/sqlschema"
)

// This file opens and migrates a database, limits how long a transaction waits for locks and
// connections, and repeats what another transaction was in the way of. tx.go runs the transaction.

// Limits are the limits of a transaction's waits.
type Limits struct {
	// Wait limits each wait for a lock and for a connection, beside the context of each call.
	Wait time.Duration

	// Idle is the pause between two statements after which PostgreSQL ends the transaction.
	Idle time.Duration

	// Whole is the time that the transaction has, or 0 if that is not known. MariaDB ends what is
	// idle for longer.
	Whole time.Duration
}

// DB begins transactions on a user's [sql.DB]. It is safe for concurrent use, holds no connection
// between calls, and needs no Close.
type DB struct {
	db     *sql.DB
	d      Dialect
	limits Limits
	turns  chan struct{} // has an element while a transaction has the turn to write
	queue  *queue.Queue  // among the processes that write; nil if any number may write at once
}

// Open checks the database's settings and the version of the tables, and changes nothing. It waits
// for a locked file. A file that cannot be opened, or is no database, is an error at once.
func Open(ctx context.Context, db *sql.DB, d Dialect, s sqlschema.Prefixed, l Limits) (*DB, error) {
	b := newDB(db, d, l)
	err := b.Patiently(ctx, func(ctx context.Context) error {
		if err := d.Settings(ctx, db); err != nil {
			return err
		}
		if err := b.join(ctx); err != nil {
			return err
		}
		v, err := b.version(ctx, db, s)
		if err != nil {
			return err
		}
		if known := len(s.Scripts); v > known {
			slog.Info("the tables are newer than this program, which works on them", "tables", s.Prefix+"*", "version", v, "known", known)
		}
		if err := s.Check(v); err != nil {
			return err
		}
		return b.foundRows(ctx, s.Table())
	})
	if err != nil {
		return nil, err
	}
	return b, nil
}

// Migrate creates the tables of s, or brings them up to date. Concurrent calls wait for each other.
func Migrate(ctx context.Context, db *sql.DB, d Dialect, s sqlschema.Prefixed, l Limits) error {
	b := newDB(db, d, l)
	if err := b.Patiently(ctx, b.join); err != nil {
		return err
	}
	t, err := b.Begin(ctx)
	if err != nil {
		return err
	}
	defer t.End()
	if err := d.LockMigrations(ctx, t, l.Wait); err != nil {
		return err
	}
	v, err := b.version(ctx, t.Conn, s)
	if err != nil {
		return err
	}
	if err := s.Upgrade(v, func(script string) error { return t.exec(ctx, script) }); err != nil {
		return err
	}
	return t.Commit(ctx)
}

func newDB(db *sql.DB, d Dialect, l Limits) *DB {
	return &DB{db: db, d: d, limits: l, turns: make(chan struct{}, 1)}
}

func (b *DB) join(ctx context.Context) (err error) {
	b.queue, err = b.d.Queue(ctx, b.db)
	return err
}

func (b *DB) version(ctx context.Context, q Querier, s sqlschema.Prefixed) (int, error) {
	v, err := b.d.Version(ctx, q, s.Table())
	if err != nil {
		return 0, fmt.Errorf("read the version of the schema: %w", err)
	}
	return v, nil
}

func (b *DB) foundRows(ctx context.Context, table string) error {
	update := b.d.FoundRows(table)
	if update == "" {
		return nil
	}
	r, err := b.db.ExecContext(ctx, update)
	if err != nil {
		return err
	}
	n, err := r.RowsAffected()
	if err == nil && n != 1 {
		err = fmt.Errorf("an UPDATE that changes nothing reports %d rows instead of 1: add clientFoundRows=true to the data source name", n)
	}
	return err
}

// Rows calls scan for each row of a query. It calls begin before the query, and again before each
// repetition, which follows if another transaction was in the way.
func (b *DB) Rows(ctx context.Context, begin func(), query string, args []any, scan func(*sql.Rows) error) error {
	return b.Patiently(ctx, func(ctx context.Context) error {
		begin()
		rows, err := b.db.QueryContext(ctx, query, args...)
		if err != nil {
			return err
		}
		defer func() { _ = rows.Close() }()
		for rows.Next() {
			if err := scan(rows); err != nil {
				return err
			}
		}
		return rows.Err()
	})
}

// Patiently repeats do while another transaction is in the way, until the time is up. It does not
// rely on the driver: a driver of SQLite waits only if busy_timeout is set.
func (b *DB) Patiently(ctx context.Context, do func(ctx context.Context) error) error {
	if err := ctx.Err(); err != nil { // no transaction is to blame for a call that comes too late
		return err
	}
	waited, cancel := context.WithTimeout(ctx, b.limits.Wait)
	defer cancel()
	var inTheWay error // the last answer that blames another transaction
	for {
		err := do(waited)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, errInLine) || errors.Is(err, errNoConn) || b.d.Classify(err) == Busy:
			inTheWay = err
		case waited.Err() == nil || inTheWay == nil && ctx.Err() != nil:
			return err
		}
		timer := time.NewTimer(queue.Pause())
		select {
		case <-timer.C:
			continue
		case <-waited.Done():
			timer.Stop()
		}
		if inTheWay == nil {
			inTheWay = err
		}
		// Whoever is in the way, it is no message's fault.
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("%w: waiting for the write lock: %w: %w", epoch.ErrTransient, err, inTheWay)
		}
		return fmt.Errorf("%w: the write lock was not free for %v: %w", epoch.ErrTransient, b.limits.Wait, inTheWay)
	}
}

var (
	errInLine = errors.New("transactions of this process are before it")

	errNoConn = errors.New("no connection was free")
)
