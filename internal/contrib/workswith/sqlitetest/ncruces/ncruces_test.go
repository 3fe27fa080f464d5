// Package ncruces_test has sqlsink on github.com/ncruces/go-sqlite3, which needs no C compiler.
package ncruces_test

import (
	"database/sql"
	"testing"

	_ "github.com/ncruces/go-sqlite3/driver"

	"github.com/epochfence/epochfence/internal/contrib/workswith/sqlitetest"
)

var driver sqlitetest.Opener = func(t testing.TB, file string) *sql.DB {
	return sqlitetest.Open(t, "sqlite3", "file:"+file+"?_pragma=journal_mode(wal)&_pragma=synchronous(off)")
}

func TestTheSinkPassesItsSuiteOnNcrucesDriver(t *testing.T) { driver.Suite(t) }

func TestAStatementThatIsPreparedTwiceWritesOnceOnNcrucesDriver(t *testing.T) {
	driver.PreparedTwice(t)
}

func TestRowsAreOfTheirCallAloneOnNcrucesDriver(t *testing.T) { driver.RowsOfACall(t) }

func TestATokenInARowIsComparedOnNcrucesDriver(t *testing.T) { driver.Tokens(t) }
