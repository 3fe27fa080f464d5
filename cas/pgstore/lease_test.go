package pgstore_test

import (
	"errors"
	"testing"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/cas/castest"
	"github.com/epochfence/epochfence/cas/guard/guardtest"
	"github.com/epochfence/epochfence/internal/servers/pgtest"
	"github.com/epochfence/epochfence/lease/leasetest"
	"github.com/epochfence/epochfence/sinks/cassink/cassinktest"
	"github.com/epochfence/epochfence/sinks/pgsink"
)

func TestLeases(t *testing.T) { t.Parallel(); leasetest.Run(t, rig) }

func TestItems(t *testing.T) { t.Parallel(); guardtest.Run(t, rig) }

func TestConsumers(t *testing.T) { t.Parallel(); cassinktest.Run(t, rig) }

func TestAServerThatIsKilled(t *testing.T) {
	t.Parallel()
	create := func(t testing.TB) castest.Rig {
		s := pgtest.StartServer(t, pgtest.Options{NoFsync: true}) // the server is killed, not the machine
		db := s.Database(t)
		if err := pgsink.Migrate(t.Context(), db.Superuser(t), pgsink.Options{}); err != nil {
			t.Fatal(err)
		}
		return castest.Rig{
			Open: func(t testing.TB, via func(string) string) cas.Store { return open(t, pool(t, db.URL, via)) },
			Kill: func(t testing.TB) {
				if err := errors.Join(s.Stop(pgtest.Immediate), s.Start(t.Context())); err != nil {
					t.Fatal(err)
				}
			},
		}
	}
	t.Run("items", func(t *testing.T) { t.Parallel(); castest.RunKilled(t, create) })
	t.Run("leases", func(t *testing.T) { t.Parallel(); leasetest.RunKilled(t, create) })
	t.Run("consumers", func(t *testing.T) { t.Parallel(); cassinktest.RunKilled(t, create) })
}

func TestCommitRow(t *testing.T) { cassinktest.Measure(t, "PostgreSQL", rig) }

func TestLeaseRow(t *testing.T) {
	leasetest.Measure(t, leasetest.Row{
		Store:  "PostgreSQL",
		Number: "a sequence: it grows, also over deletions; a restored backup repeats it",
		Needs:  "`synchronous_commit`; a synchronous standby if it fails over",
	}, rig)
}
