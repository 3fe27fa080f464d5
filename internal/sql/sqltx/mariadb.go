package sqltx

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/sql/queue"
	"github.com/epochfence/epochfence/internal/sql/sqltext"
	"github.com/epochfence/epochfence/internal/text/inert"
)

// This file has how transactions begin, wait and fail in MariaDB, and which settings it needs.
// effect.go has the texts of handlers, and db.go decides what is tried again.

// MariaDB is MariaDB 10.11 or newer through github.com/go-sql-driver/mysql, with clientFoundRows=true.
// What is for MySQL 8 alone follows its manual, and was not run.
var MariaDB Dialect = mariadb{}

type mariadb struct{}

func (mariadb) String() string { return "MariaDB" }

// Settings returns an error for settings under which a text or a name means something else to the
// server than to this package, or under which a value is changed instead of refused.
func (mariadb) Settings(ctx context.Context, q Querier) error {
	var database sql.NullString
	var mode, charsets, completion string
	var autocommit, statements, uncommitted, safe bool
	err := q.QueryRowContext(ctx, `SELECT DATABASE(), @@SESSION.sql_mode, CONCAT(@@SESSION.character_set_client, ', ', @@SESSION.character_set_connection), @@SESSION.completion_type,`+
		` @@SESSION.autocommit, @@log_bin AND @@SESSION.binlog_format = 'STATEMENT', 'READ-UNCOMMITTED' = /*M!100300 @@SESSION.tx_isolation */ /*!80000 @@SESSION.transaction_isolation */,`+
		` @@SESSION.sql_safe_updates OR @@SESSION.sql_select_limit < 9223372036854775807`).
		Scan(&database, &mode, &charsets, &completion, &autocommit, &statements, &uncommitted, &safe)
	if err != nil {
		if _, of := serverError(err); of != nil || ctx.Err() != nil || (mariadb{}).Classify(err) == InDoubt {
			return err
		}
		return fmt.Errorf("read the settings, which works with github.com/go-sql-driver/mysql: %w", err)
	}
	has := func(m string) bool { return strings.Contains(","+mode+",", ","+m+",") }
	switch {
	case !database.Valid:
		return errors.New("the data source name names no database: add it after the slash")
	case !has("STRICT_TRANS_TABLES") && !has("STRICT_ALL_TABLES"):
		return fmt.Errorf("sql_mode is %q, which shortens values that do not fit: add STRICT_TRANS_TABLES", mode)
	case has("ANSI_QUOTES") || has("NO_BACKSLASH_ESCAPES") || has("EMPTY_STRING_IS_NULL"):
		return fmt.Errorf("sql_mode is %q: remove ANSI_QUOTES, NO_BACKSLASH_ESCAPES and EMPTY_STRING_IS_NULL, with which texts mean something else", mode)
	case charsets != "utf8mb4, utf8mb4": // which changes no name and no claim
		return fmt.Errorf("character_set_client and character_set_connection are %s: set charset=utf8mb4 in the data source name", charsets)
	case completion != "NO_CHAIN" && completion != "0":
		return fmt.Errorf("completion_type is %q: set it to NO_CHAIN", completion)
	case !autocommit:
		return errors.New("autocommit is off: remove it from the data source name, and from init_connect")
	case statements:
		return errors.New("binlog_format is STATEMENT, which refuses READ COMMITTED: set it to MIXED or ROW")
	case uncommitted:
		return errors.New("tx_isolation is READ-UNCOMMITTED, which reads what may be rolled back: set it to READ-COMMITTED")
	case safe:
		return errors.New("sql_safe_updates or sql_select_limit is set: remove them from the data source name, and from init_connect")
	}
	return nil
}

// MariaDBDatabase returns what qualifies the names of tables in the database of the data source name: a
// handler can change the session's.
func MariaDBDatabase(ctx context.Context, q Querier) (string, error) {
	var name string
	err := q.QueryRowContext(ctx, `SELECT COALESCE(DATABASE(), '')`).Scan(&name)
	return "`" + strings.ReplaceAll(name, "`", "``") + "`.", err
}

// FoundRows is a no-op, whose count shows what the driver counts.
func (mariadb) FoundRows(table string) string {
	return `UPDATE ` + table + ` SET version = version WHERE version = 2`
}

func (mariadb) Version(ctx context.Context, q Querier, table string) (v int, err error) {
	var there bool
	err = q.QueryRowContext(ctx, `SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name = ?`, table).Scan(&there)
	if err != nil || !there {
		return 0, err
	}
	err = q.QueryRowContext(ctx, `SELECT COALESCE(MAX(version), 0) FROM `+table).Scan(&v)
	return v, err
}

// LockMigrations takes a lock of the session's, because each CREATE TABLE commits. It is released
// with the connection.
func (mariadb) LockMigrations(ctx context.Context, t *Tx, wait time.Duration) error {
	const lock = `SELECT GET_LOCK(CONCAT('epochfence ', MD5(DATABASE())), ?)`
	t.spoil(lock)
	var got sql.NullInt64
	err := t.Conn.QueryRowContext(ctx, lock, seconds(wait)).Scan(&got)
	if err == nil && got.Int64 != 1 {
		return fmt.Errorf("%w: another migration runs", epoch.ErrTransient)
	}
	return err
}

// Begin asks for READ COMMITTED, whatever the default is. REPEATABLE READ would be exact too, since
// fences are read FOR UPDATE, but locks gaps between rows, so that transactions of different
// partitions wait for each other's inserts, or deadlock.
//
// The server ends the transaction itself, shortly after its time is over: idle_transaction_timeout if
// the process is frozen, max_statement_time if a statement is. In MySQL, which has neither, wait_timeout
// and max_execution_time, for SELECT alone. Comments with a version are run from that version on, those
// with M by MariaDB alone, and those from 50700 on by MySQL alone.
func (mariadb) Begin(l Limits) []string {
	wait := seconds(l.Wait)
	most := wait + 1
	if l.Whole > 0 {
		most = seconds(l.Whole) + 1
		wait = min(wait, max(most-2, 1)) // a lock that is waited for in vain is said before the context ends
	}
	return []string{
		fmt.Sprintf(`SET @epochfence_lock = @@SESSION.innodb_lock_wait_timeout, SESSION innodb_lock_wait_timeout = %[1]d`+
			`, @epochfence_table = @@SESSION.lock_wait_timeout, SESSION lock_wait_timeout = %[1]d`+
			` /*M!100300 , @epochfence_idle = @@SESSION.idle_transaction_timeout, SESSION idle_transaction_timeout = %[2]d`+
			`, @epochfence_statement = @@SESSION.max_statement_time, SESSION max_statement_time = %[2]d, @@tx_isolation = 'READ-COMMITTED' */`+
			` /*!80000 , @epochfence_idle = @@SESSION.wait_timeout, SESSION wait_timeout = %[2]d`+
			`, @epochfence_statement = @@SESSION.max_execution_time, SESSION max_execution_time = 1000 * %[2]d, @@transaction_isolation = 'READ-COMMITTED' */`, wait, most),
		`START TRANSACTION READ WRITE`,
	}
}

func (mariadb) Restore() string {
	return `SET SESSION innodb_lock_wait_timeout = @epochfence_lock, SESSION lock_wait_timeout = @epochfence_table` +
		` /*M!100300 , SESSION idle_transaction_timeout = @epochfence_idle, SESSION max_statement_time = @epochfence_statement */` +
		` /*!80000 , SESSION wait_timeout = @epochfence_idle, SESSION max_execution_time = @epochfence_statement */`
}

// seconds are whole, because the settings are.
func seconds(d time.Duration) int { return max(int(math.Ceil(d.Seconds())), 1) }

// OneByOne is true: go-sql-driver has multiStatements=false, and cannot send while it reads rows.
func (mariadb) OneByOne() bool { return true }

// Unwait does nothing, because there is no Queue.
func (mariadb) Unwait(context.Context, *sql.Conn) (undo string, err error) { return "", nil }

// Queue returns nil, because InnoDB has locks of rows.
func (mariadb) Queue(context.Context, Querier) (*queue.Queue, error) { return nil, nil }

func (mariadb) Written() string { return `` }

// Kept looks for the warning that a table, of MyISAM for instance, has no transactions. Others are of the
// statement before.
func (mariadb) Kept(ctx context.Context, conn *sql.Conn) (kept bool) {
	rows, err := conn.QueryContext(ctx, `SHOW WARNINGS`)
	if err != nil {
		return false
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var level, message string
		var number int
		kept = rows.Scan(&level, &number, &message) == nil && number == mariadbNotRolledBack || kept
	}
	return kept && rows.Err() == nil
}

// InTransaction sets a savepoint, which does nothing outside of a transaction. After a deadlock that does
// not suffice: everything is rolled back, and some versions continue in a transaction that is another one.
// So they do after a lock that was waited for too long if innodb_rollback_on_timeout is on.
func (m mariadb) InTransaction(ctx context.Context, conn *sql.Conn, failed error) (bool, error) {
	if number, _ := serverError(failed); m.Classify(failed) == Busy || number == mariadbLockTable {
		return false, nil
	}
	name := SavepointName()
	if _, err := conn.ExecContext(ctx, `SAVEPOINT `+name); err != nil {
		return false, err
	}
	_, err := conn.ExecContext(ctx, `RELEASE SAVEPOINT `+name)
	if n, _ := serverError(err); n == mariadbDoesNotExist {
		return false, nil
	}
	return err == nil, err
}

// Numbers of errors. https://mariadb.com/kb/en/mariadb-error-code-reference/
const (
	mariadbChanged       = 1020 // ER_CHECKREAD, under innodb_snapshot_isolation
	mariadbDiskFull      = 1021
	mariadbEngine        = 1030 // ER_GET_ERRNO
	mariadbConnections   = 1040
	mariadbDenied        = 1044
	mariadbNoDatabase    = 1049
	mariadbShutdown      = 1053
	mariadbNoColumn      = 1054
	mariadbTableFull     = 1114
	mariadbColumnCount   = 1136
	mariadbTableDenied   = 1142
	mariadbColumnDenied  = 1143
	mariadbNoTable       = 1146
	mariadbDuringCommit  = 1180
	mariadbNotRolledBack = 1196
	mariadbUserConns     = 1203
	mariadbLockWait      = 1205
	mariadbLockTable     = 1206 // ER_LOCK_TABLE_FULL
	mariadbDeadlock      = 1213
	mariadbPrivilege     = 1227
	mariadbReadOnly      = 1290 // --read-only, and others of its kind
	mariadbDoesNotExist  = 1305 // a savepoint, a procedure
	mariadbInterrupted   = 1317
	mariadbNoDefault     = 1364
	mariadbProcDenied    = 1370
	mariadbReadOnlyTx    = 1792
	mariadbReadOnlyMode  = 1836
	mariadbKilled        = 1927
	mariadbStatementTime = 1969
	mysqlStatementTime   = 3024
)

// serverError finds an error of the server in err, and its number. of is nil if there is none. The
// driver's type has the number in a field, and no method for it. It is not named here, because every
// user of this package would then build the driver.
func serverError(err error) (number int, of error) {
	of = inert.Find(inert.Error(err), func(err error) (found bool) {
		v := reflect.Indirect(reflect.ValueOf(err))
		if v.Kind() == reflect.Struct && v.Type().PkgPath() == "github.com/go-sql-driver/mysql" {
			number, found = integer(v.FieldByName("Number"))
		}
		return found
	})
	return number, of
}

// lost are the driver's messages for a connection that failed, which have no type.
var lost = []string{"invalid connection", "malformed packet", "commands out of sync", "busy buffer", "bad connection"}

// Classify takes what is not the server's answer for a failed connection if it looks like one.
func (mariadb) Classify(err error) Class {
	err = inert.Error(err)
	switch number, of := serverError(err); {
	case of == nil:
	case number == mariadbLockWait || number == mariadbDeadlock || number == mariadbChanged || number == mariadbConnections || number == mariadbUserConns:
		return Busy
	case number == mariadbInterrupted || number == mariadbStatementTime || number == mysqlStatementTime || number == mariadbDuringCommit:
		return Interrupted
	case number == mariadbKilled || number == mariadbShutdown:
		return InDoubt
	default:
		return Refused
	}
	var network net.Error
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return Aborted // the driver closes the connection
	case errors.Is(err, driver.ErrBadConn), errors.Is(err, sql.ErrConnDone), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.As(err, &network):
		return InDoubt
	}
	said := inert.Find(err, func(e error) bool {
		return slices.ContainsFunc(lost, func(message string) bool { return strings.HasPrefix(inert.Try(e.Error), message) })
	})
	if said != nil {
		return InDoubt
	}
	return Refused
}

func (mariadb) Words() sqltext.Dialect { return sqltext.MariaDB }

func (mariadb) ReadOnly(err error) bool {
	number, _ := serverError(err)
	return number == mariadbReadOnlyTx
}

func (m mariadb) Fault(err error) error {
	number, of := serverError(err)
	if of == nil {
		if m.Classify(err) == InDoubt {
			return fmt.Errorf("%w: the connection to the server failed", epoch.ErrTransient)
		}
		return nil
	}
	switch number {
	case mariadbLockWait, mariadbLockTable, mariadbDeadlock, mariadbChanged:
		return fmt.Errorf("%w: another transaction is in the way", epoch.ErrTransient)
	case mariadbConnections, mariadbUserConns:
		return fmt.Errorf("%w: the server has no connection free", epoch.ErrTransient)
	case mariadbKilled, mariadbShutdown:
		return fmt.Errorf("%w: the server has closed the connection", epoch.ErrTransient)
	case mariadbDiskFull, mariadbTableFull:
		return fmt.Errorf("%w: the disk or a table is full; nothing was committed", epoch.ErrUnhealthy)
	case mariadbReadOnly, mariadbReadOnlyTx, mariadbReadOnlyMode:
		return fmt.Errorf("%w: the server cannot be written to: is it a replica?", epoch.ErrUnhealthy)
	case mariadbDenied, mariadbTableDenied, mariadbColumnDenied, mariadbPrivilege, mariadbProcDenied:
		return fmt.Errorf("%w: a privilege is missing", epoch.ErrUnhealthy)
	case mariadbEngine, mariadbDuringCommit:
		return fmt.Errorf("%w: the storage engine fails", epoch.ErrUnhealthy)
	case mariadbDoesNotExist:
		if strings.Contains(inert.Try(of.Error), ": SAVEPOINT ") { // not a procedure or a function
			return nil
		}
		fallthrough
	case mariadbNoTable, mariadbNoColumn, mariadbNoDatabase, mariadbColumnCount, mariadbNoDefault:
		return fmt.Errorf("%w: the schema is not the one that the statement expects: is a migration missing?", epoch.ErrUnhealthy)
	}
	return nil
}
