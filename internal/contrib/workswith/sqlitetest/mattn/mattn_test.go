//go:build cgo

// Package mattn_test has sqlsink on github.com/mattn/go-sqlite3, which needs a C compiler.
package mattn_test

import (
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"
	"testing"

	_ "github.com/mattn/go-sqlite3"

	"github.com/epochfence/epochfence/internal/contrib/workswith/sqlitetest"
	"github.com/epochfence/epochfence/internal/sql/sqltx"
	"github.com/epochfence/epochfence/internal/suites/sqlsinktest"
	"github.com/epochfence/epochfence/internal/text/inert"
)

var driver sqlitetest.Opener = func(t testing.TB, file string) *sql.DB {
	return sqlsinktest.Open(t, "sqlite3", "file:"+file+"?_journal_mode=WAL&_synchronous=OFF")
}

func TestTheSinkPassesItsSuiteOnMattnsDriver(t *testing.T) { driver.Suite(t) }

func TestAStatementThatIsPreparedTwiceWritesOnceOnMattnsDriver(t *testing.T) { driver.PreparedTwice(t) }

func TestRowsAreOfTheirCallAloneOnMattnsDriver(t *testing.T) { driver.RowsOfACall(t) }

func TestATokenInARowIsComparedOnMattnsDriver(t *testing.T) { driver.Tokens(t) }

// What a handler returns is covered on its way through the sink: its causes are seen by errors.As alone.
func TestACoveredErrorMeansWhatTheErrorMeansOnMattnsDriver(t *testing.T) {
	file := filepath.Join(t.TempDir(), "app.db")
	holder, err := driver(t, file).Conn(t.Context())
	if err == nil {
		_, err = holder.ExecContext(t.Context(), `BEGIN IMMEDIATE`)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = holder.Close() }()
	other := driver(t, file)
	other.SetMaxOpenConns(1)
	_, err = other.ExecContext(t.Context(), `PRAGMA busy_timeout = 0`)
	if err == nil {
		_, err = other.ExecContext(t.Context(), `BEGIN IMMEDIATE`)
	}
	for _, e := range []error{err, covered{inert.Error(err)}, fmt.Errorf("commit: %w", covered{inert.Error(fmt.Errorf("insert: %w", err))})} {
		if c := sqltx.SQLite.Classify(e); c != sqltx.Busy {
			t.Errorf("%v: class %d, want %d", e, c, sqltx.Busy)
		}
	}
}

type covered struct{ err error }

func (c covered) Error() string      { return c.err.Error() }
func (c covered) Inert(inert.Mark)   {}
func (c covered) As(target any) bool { return errors.As(c.err, target) }
