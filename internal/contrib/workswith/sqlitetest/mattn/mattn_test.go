//go:build cgo

// Package mattn_test has sqlsink on github.com/mattn/go-sqlite3, which needs a C compiler.
package mattn_test

import (
	"database/sql"
	"testing"

	_ "github.com/mattn/go-sqlite3"

	"github.com/epochfence/epochfence/internal/contrib/workswith/sqlitetest"
)

var driver sqlitetest.Opener = func(t testing.TB, file string) *sql.DB {
	return sqlitetest.Open(t, "sqlite3", "file:"+file+"?_journal_mode=WAL&_synchronous=OFF")
}

func TestTheSinkPassesItsSuiteOnMattnsDriver(t *testing.T) { driver.Suite(t) }

func TestAStatementThatIsPreparedTwiceWritesOnceOnMattnsDriver(t *testing.T) { driver.PreparedTwice(t) }

func TestRowsAreOfTheirCallAloneOnMattnsDriver(t *testing.T) { driver.RowsOfACall(t) }

func TestATokenInARowIsComparedOnMattnsDriver(t *testing.T) { driver.Tokens(t) }
