package pgstore_test

import (
	"testing"

	"github.com/epochfence/epochfence/internal/servers/pgtest"
	"github.com/epochfence/epochfence/internal/suites/tokentest"
)

func TestWhichNumbersGrow(t *testing.T) {
	db := pgtest.Start(t).Superuser(t)
	exec := func(t testing.TB, statements ...string) {
		t.Helper()
		for _, sql := range statements {
			if _, err := db.Exec(t.Context(), sql); err != nil {
				t.Fatalf("%s: %v", sql, err)
			}
		}
	}
	read := func(sql string) func(t testing.TB) int64 {
		return func(t testing.TB) (n int64) {
			if err := db.QueryRow(t.Context(), sql).Scan(&n); err != nil {
				t.Fatalf("%s: %v", sql, err)
			}
			return n
		}
	}
	exec(t, "create sequence token", "create table lock (key text primary key, counter bigint, token bigint)")
	tokentest.Show(t, tokentest.Server{
		Name: "PostgreSQL",
		Write: func(t testing.TB) {
			exec(t, `insert into lock values ('lock', 1, nextval('token'))
				on conflict (key) do update set counter = lock.counter + 1, token = excluded.token`)
		},
		Delete: func(t testing.TB) { exec(t, "delete from lock") },
		Backup: func(t testing.TB) func() { // as pg_dump does
			exec(t, "create table saved as select * from lock", "create table saved_token as select last_value from token")
			return func() {
				exec(t, "truncate lock", "insert into lock select * from saved", "select setval('token', (select last_value from saved_token))")
			}
		},
		Numbers: map[string]func(t testing.TB) int64{
			"counter in the row":    read("select counter from lock"),
			"nextval of a sequence": read("select token from lock"),
		},
	})
}
