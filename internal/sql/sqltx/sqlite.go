package sqltx

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"time"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/sql/queue"
	"github.com/epochfence/epochfence/internal/sql/sqltext"
	"github.com/epochfence/epochfence/internal/text/inert"
)

// This file has how transactions begin, wait and fail in SQLite, which settings it needs, and the result
// codes in the errors of four drivers, which it does not import. effect.go has the texts of handlers, and
// db.go decides what is tried again.

// SQLite is SQLite 3.37 or newer through modernc.org/sqlite, in WAL mode. Other drivers work if
// their errors have a method Code() int that returns SQLite's result code, as those of
// github.com/glebarez/go-sqlite. So do github.com/mattn/go-sqlite3 and
// github.com/ncruces/go-sqlite3. Settings refuses all others.
var SQLite Dialect = sqlite{}

type sqlite struct{}

func (sqlite) String() string { return "SQLite" }

func (sqlite) Version(ctx context.Context, q Querier, table string) (v int, err error) {
	var there bool
	err = q.QueryRowContext(ctx, `SELECT count(*) FROM main.sqlite_schema WHERE type = 'table' AND name = ? COLLATE NOCASE`, table).Scan(&there)
	if err != nil || !there {
		return 0, err
	}
	err = q.QueryRowContext(ctx, `SELECT coalesce(max(version), 0) FROM main.`+table).Scan(&v)
	return v, err
}

// Settings requires WAL. In the other modes a reader keeps a writer from committing and a writer
// keeps readers out. COMMIT itself would have to wait, and a frozen reader of the user's would stop
// every process.
func (sqlite) Settings(ctx context.Context, q Querier) error {
	var mode string
	if err := q.QueryRowContext(ctx, `PRAGMA journal_mode`).Scan(&mode); err != nil {
		return err
	}
	if mode != "wal" {
		return fmt.Errorf("the file's journal mode is %q; several processes need WAL: "+
			"add _pragma=journal_mode(WAL) to the data source name, on a local disk", mode)
	}
	// The result code of an error decides whether anything is committed.
	err := q.QueryRowContext(ctx, `SELECT epochfence_no_such_function()`).Scan(&mode)
	code, of := resultCode(err)
	switch {
	case err == nil, of != nil && code&0xff == sqliteError:
		return nil
	case of != nil, ctx.Err() != nil:
		return err
	}
	return fmt.Errorf("the errors of this driver do not tell SQLite's result code by a method Code() int, as this %T: "+
		"use modernc.org/sqlite, or glebarez/go-sqlite, mattn/go-sqlite3 or ncruces/go-sqlite3 of github.com", err)
}

// Begin takes the file's write lock at once. A deferred transaction would take it at its first
// write, where it could fail after reading, with SQLITE_BUSY_SNAPSHOT.
// https://www.sqlite.org/lang_transaction.html
func (sqlite) Begin(Limits) []string { return []string{`BEGIN IMMEDIATE`} }

func (sqlite) Restore() string { return `` }

func (sqlite) OneByOne() bool { return false }

// Unwait turns off the busy handler, which a data source name often asks for. The busy handler
// tries the lock ten times a second, and hardly ever finds it free while other processes write
// without a pause.
func (sqlite) Unwait(ctx context.Context, conn *sql.Conn) (undo string, err error) {
	var ms int
	if err := conn.QueryRowContext(ctx, `PRAGMA busy_timeout`).Scan(&ms); err != nil || ms == 0 {
		return "", err
	}
	_, err = conn.ExecContext(ctx, `PRAGMA busy_timeout = 0`)
	return fmt.Sprintf(`PRAGMA busy_timeout = %d`, ms), err
}

func (sqlite) LockMigrations(context.Context, *Tx, time.Duration) error { return nil }

func (sqlite) FoundRows(string) string { return `` }

func (sqlite) Queue(ctx context.Context, q Querier) (*queue.Queue, error) { return queue.Open(ctx, q) }

func (sqlite) Written() string { return `PRAGMA data_version` }

func (sqlite) Kept(context.Context, *sql.Conn) bool { return false }

// InTransaction tries to begin a transaction. Within one, SQLite refuses that without touching it.
func (sqlite) InTransaction(ctx context.Context, conn *sql.Conn, _ error) (bool, error) {
	_, err := conn.ExecContext(ctx, `BEGIN`)
	if code, of := resultCode(err); of != nil && code == sqliteError {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	_, err = conn.ExecContext(ctx, `ROLLBACK`)
	return false, err
}

// Result codes. https://www.sqlite.org/rescode.html
const (
	sqliteError     = 1
	sqlitePerm      = 3
	sqliteAbort     = 4
	sqliteBusy      = 5
	sqliteLocked    = 6
	sqliteNoMem     = 7
	sqliteReadOnly  = 8
	sqliteInterrupt = 9
	sqliteIOErr     = 10
	sqliteCorrupt   = 11
	sqliteFull      = 13
	sqliteCantOpen  = 14
	sqliteAuth      = 23
	sqliteNotADB    = 26
)

// Classify follows https://www.sqlite.org/lang_transaction.html, "Response To Errors Within A
// Transaction": after full, I/O error, out of memory, busy and interrupt, the transaction may have
// been rolled back. A COMMIT that fails with an I/O error may have been written and not synced, and
// a crash may bring it to light. All other errors are definite.
func (sqlite) Classify(err error) Class {
	err = inert.Error(err)
	code, of := resultCode(err)
	if of == nil {
		switch {
		case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
			return Aborted // the driver interrupts
		case errors.Is(err, driver.ErrBadConn), errors.Is(err, sql.ErrConnDone):
			return InDoubt
		}
		return Refused
	}
	switch code & 0xff { // the rest is the extended code
	case sqliteBusy, sqliteLocked:
		return Busy
	case sqliteFull, sqliteNoMem, sqliteInterrupt, sqliteAbort:
		return Aborted
	case sqliteIOErr, sqliteCorrupt, sqliteNotADB:
		return InDoubt
	}
	return Refused
}

func (sqlite) Words() sqltext.Dialect { return sqltext.SQLite }

func (sqlite) ReadOnly(err error) bool {
	code, e := resultCode(err)
	return e != nil && code&0xff == sqliteReadOnly
}

// schemaDiffers are parts of SQLite's messages for a statement that expects another schema than the
// file has. The messages have the code of every mistake in SQL. After a deploy without its
// migration, every message of the source fails with one.
var schemaDiffers = []string{
	"no such table", "no such column", "no such view", "no such function", "has no column named", "values were supplied",
	"ON CONFLICT clause does not match any PRIMARY KEY or UNIQUE constraint",
}

func (sqlite) Fault(err error) error {
	code, e := resultCode(err)
	if e == nil {
		return nil
	}
	switch code & 0xff {
	case sqliteBusy, sqliteLocked:
		return fmt.Errorf("%w: another transaction is in the way", epoch.ErrTransient)
	case sqliteNoMem:
		return fmt.Errorf("%w: out of memory", epoch.ErrTransient)
	case sqliteFull:
		return fmt.Errorf("%w: no room: the disk, or the file by its own limit, is full; nothing was committed", epoch.ErrUnhealthy)
	case sqliteReadOnly, sqlitePerm, sqliteAuth, sqliteCantOpen:
		return fmt.Errorf("%w: the file, its directory or the connection cannot be written to", epoch.ErrUnhealthy)
	case sqliteIOErr:
		return fmt.Errorf("%w: the disk fails", epoch.ErrUnhealthy)
	case sqliteCorrupt, sqliteNotADB:
		return fmt.Errorf("%w: the file is damaged: restore it from a backup", epoch.ErrUnhealthy)
	case sqliteError:
		for _, s := range schemaDiffers {
			if strings.Contains(inert.Try(e.Error), s) {
				return fmt.Errorf("%w: the schema is not the one that the statement expects: is a migration missing?", epoch.ErrUnhealthy)
			}
		}
	}
	return nil
}

// resultCode finds an SQLite driver's error in err, and its result code:
// https://www.sqlite.org/rescode.html. of is nil if there is none.
func resultCode(err error) (code int, of error) {
	err = inert.Error(err) // an argument's method or the handler may have returned it
	var e interface {
		error
		Code() int
	}
	if errors.As(err, &e) {
		return inert.Try(e.Code), e
	}
	return codeInside(err)
}

// codeInside reads the code of drivers that have it elsewhere. It does not name their types,
// because every user of this package would then build the drivers.
func codeInside(err error) (code int, of error) {
	of = inert.Find(err, func(err error) (found bool) {
		v := reflect.ValueOf(err)
		switch t := reflect.Indirect(v).Type(); t.PkgPath() {
		case "github.com/mattn/go-sqlite3": // a field
			if t.Kind() == reflect.Struct {
				code, found = integer(reflect.Indirect(v).FieldByName("ExtendedCode"))
			}
		case "github.com/ncruces/go-sqlite3": // a method of a type of its own, or the error itself
			if method := v.MethodByName("ExtendedCode"); method.IsValid() {
				v = method.Call(nil)[0]
			}
			code, found = integer(v)
		}
		return found
	})
	return code, of
}

func integer(v reflect.Value) (int, bool) {
	switch {
	case v.CanInt():
		return int(v.Int()), true
	case v.CanUint():
		return int(v.Uint()), true
	}
	return 0, false
}
