package mariadb_test

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/sql/sqltx"
)

// What an error of the server or the driver means for its transaction and its message, also wrapped.
func TestWhatAnErrorMeans(t *testing.T) {
	server := func(number uint16) error { return &mysql.MySQLError{Number: number, Message: "m"} }
	for _, c := range []struct {
		err   error
		class sqltx.Class
		fault error
	}{
		{server(1062), sqltx.Refused, nil},                // a duplicate key
		{server(1366), sqltx.Refused, nil},                // a value that does not fit
		{server(1064), sqltx.Refused, nil},                // no SQL
		{server(1205), sqltx.Busy, epoch.ErrTransient},    // a lock that is not granted in time
		{server(1213), sqltx.Busy, epoch.ErrTransient},    // a deadlock
		{server(1020), sqltx.Busy, epoch.ErrTransient},    // a row that has changed since the snapshot
		{server(1040), sqltx.Busy, epoch.ErrTransient},    // too many connections
		{server(1969), sqltx.Interrupted, nil},            // max_statement_time
		{server(3024), sqltx.Interrupted, nil},            // max_execution_time
		{server(1317), sqltx.Interrupted, nil},            // KILL QUERY
		{server(1927), sqltx.InDoubt, epoch.ErrTransient}, // KILL
		{server(1053), sqltx.InDoubt, epoch.ErrTransient}, // a shutdown
		{server(1021), sqltx.Refused, epoch.ErrUnhealthy}, // a full disk
		{server(1290), sqltx.Refused, epoch.ErrUnhealthy}, // --read-only
		{server(1792), sqltx.Refused, epoch.ErrUnhealthy}, // a transaction that is read only
		{server(1142), sqltx.Refused, epoch.ErrUnhealthy}, // a privilege
		{server(1146), sqltx.Refused, epoch.ErrUnhealthy}, // a table that is missing
		{server(1305), sqltx.Refused, epoch.ErrUnhealthy}, // a procedure that is missing
		{&mysql.MySQLError{Number: 1305, Message: "SAVEPOINT a does not exist"}, sqltx.Refused, nil},
		{mysql.ErrInvalidConn, sqltx.InDoubt, epoch.ErrTransient},
		{driver.ErrBadConn, sqltx.InDoubt, epoch.ErrTransient},
		{io.ErrUnexpectedEOF, sqltx.InDoubt, epoch.ErrTransient},
		{&net.OpError{Op: "dial", Err: errors.New("refused")}, sqltx.InDoubt, epoch.ErrTransient},
		{context.Canceled, sqltx.Aborted, nil},
		{mysql.ErrPktTooLarge, sqltx.Refused, nil},
		{errors.New("sql: converting argument $1 type: unsupported type"), sqltx.Refused, nil},
	} {
		for _, err := range []error{c.err, fmt.Errorf("begin: %w", c.err)} {
			class, fault := sqltx.MariaDB.Classify(err), sqltx.MariaDB.Fault(err)
			if class != c.class || !errors.Is(fault, c.fault) || (fault == nil) != (c.fault == nil) {
				t.Errorf("%v: class %d and fault %v, want %d and %v", err, class, fault, c.class, c.fault)
			}
		}
	}
}
