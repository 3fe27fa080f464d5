package pgsink_test

import (
	"testing"

	"github.com/epochfence/epochfence/internal/servers/pgtest"
	"github.com/epochfence/epochfence/operate"
)

// The holders of snapshots are named to a role with no right of its own.
func TestWhoHoldsASnapshotIsNamed(t *testing.T) {
	t.Parallel()
	server := pgtest.StartServer(t, pgtest.Options{NoFsync: true, Settings: map[string]string{"max_prepared_transactions": "1"}})
	r := newRigOn(t, server.Database(t), "")
	s := r.open()
	for _, sql := range []string{"set application_name = 'report'", "begin isolation level repeatable read", "select from effects"} {
		_, err := r.admin.Exec(t.Context(), sql)
		must(t, err)
	}
	conn := r.db.Superuser(t)
	for _, sql := range []string{"begin", "insert into effects (list) values ('x')", "prepare transaction 'transfer'"} {
		_, err := conn.Exec(t.Context(), sql)
		must(t, err)
	}
	defer func() {
		_, err := conn.Exec(t.Context(), "rollback prepared 'transfer'")
		must(t, err)
	}()
	seed(t, s, orders)
	claim(t, s, orders, 5)
	held, err := s.OldestSnapshots(t.Context())
	must(t, err)
	of := map[string]operate.Snapshot{}
	for _, h := range held {
		of[h.Holder] = h
	}
	session, prepared := of[operate.HolderSession], of[operate.HolderPrepared]
	if session.Name != "report" || session.PID != int(r.admin.PgConn().PID()) || session.Transactions < 3 || session.Age != 0 {
		t.Errorf("a session: %+v", session)
	}
	if prepared.Name != "transfer" || prepared.Transactions < 2 || prepared.Transactions > session.Transactions || prepared.Age == 0 {
		t.Errorf("a prepared transaction: %+v", prepared)
	}
	if slot, is := of[operate.HolderSlot]; is {
		t.Errorf("a slot: %+v", slot)
	}
}
