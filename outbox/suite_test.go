package outbox_test

import (
	"testing"

	"github.com/epochfence/epochfence/outbox/outboxtest"
	"github.com/epochfence/epochfence/sinks/cassink"
	"github.com/epochfence/epochfence/sinks/pgsink"
	"github.com/epochfence/epochfence/sinks/sqlsink"
)

func TestSuiteOnSQLite(t *testing.T) {
	outboxtest.Run(t, func(t testing.TB) outboxtest.Rig[*sqlsink.Tx] { return sqliteLedger(t).Rig })
}

func TestSuiteOnPostgres(t *testing.T) {
	outboxtest.Run(t, func(t testing.TB) outboxtest.Rig[pgsink.Tx] { return postgresLedger(t).Rig })
}

func TestSuiteOnAStore(t *testing.T) {
	outboxtest.Run(t, func(t testing.TB) outboxtest.Rig[*cassink.Tx] { return storeLedger(t).Rig })
}
