package sqlfence_test

import (
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/epochfence/epochfence/internal/servers/pgtest"
	"github.com/epochfence/epochfence/lease/sqlfence"
)

// The role may use the schema of the function and its own table. It has put operators of its own in
// front of PostgreSQL's: there, no number is greater than another and all texts are equal.
func TestAFunctionThatIsCalledByARoleWithoutRightsComparesAsEver(t *testing.T) {
	d := pgtest.Start(t)
	super := d.Superuser(t)
	role, url := d.Role(t)
	for _, statement := range []string{
		`revoke all on schema public from public`,
		`create schema fences`,
		`grant usage on schema fences to ` + role,
		`set search_path = fences`,
		sqlfence.PostgreSQL().SQL,
		`create schema app authorization ` + role,
	} {
		if _, err := super.Exec(t.Context(), statement); err != nil {
			t.Fatalf("%s: %v", statement, err)
		}
	}
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(t.Context()) })
	for _, statement := range []string{
		`create table app.account (id integer primary key, lock_name text, lock_epoch bigint)`,
		`insert into app.account values (1, 'billing/nightly', 8)`,
		`create function app.never(bigint, bigint) returns boolean language sql as 'select false'`,
		`create function app.always(text, text) returns boolean language sql as 'select true'`,
		`create operator app.> (function = app.never, leftarg = bigint, rightarg = bigint)`,
		`create operator app.= (function = app.always, leftarg = text, rightarg = text)`,
		`create function app.json_build_object(variadic text[]) returns json language sql as 'select null::json'`,
		`set search_path = app, pg_catalog, fences`,
	} {
		if _, err := conn.Exec(t.Context(), statement); err != nil {
			t.Fatalf("%s: %v", statement, err)
		}
	}
	write := func(lock string, token int64) error {
		_, err := conn.Exec(t.Context(), `update account set lock_name = $1, lock_epoch = epochfence_token(lock_name, lock_epoch, $1, $2)`, lock, token)
		return sqlfence.Explain(err)
	}
	wantRefused(t, write("billing/nightly", 7), "billing/nightly", 7, 8)
	wantScope(t, write("billing/daily", 9), "billing/daily", 9, "billing/nightly", 8)
	wantNone(t, write("billing/nightly", 8))
}

// In this collation, "Nightly" equals "nightly".
func TestNamesAreComparedByteByByteWhateverTheCollation(t *testing.T) {
	t.Run("PostgreSQL", func(t *testing.T) {
		r := &rig{TB: t}
		r.db = r.open("pgx", pgtest.Start(t).URL)
		r.exec(sqlfence.PostgreSQL().SQL)
		r.exec(`create collation careless (provider = icu, locale = 'und-u-ks-level2', deterministic = false)`)
		r.exec(`create table account (id integer primary key, lock_name text collate careless, lock_epoch bigint, alias text collate "C")`)
		r.exec(`insert into account values (1, 'nightly', 5, 'Nightly')`)
		_, err := r.db.ExecContext(t.Context(), `update account set lock_epoch = epochfence_token(lock_name, lock_epoch, $1, $2)`, "Nightly", 7)
		wantScope(t, sqlfence.Explain(err), "Nightly", 7, "nightly", 5)
		_, err = r.db.ExecContext(t.Context(), `update account set lock_epoch = epochfence_token(lock_name, lock_epoch, alias, $1)`, 7)
		wantScope(t, sqlfence.Explain(err), "Nightly", 7, "nightly", 5)
	})
	t.Run("SQLite", func(t *testing.T) {
		r := sqliteRig(t)
		r.exec(`create table relaxed (id integer primary key, lock_name text collate nocase, lock_epoch integer)`)
		r.exec(`insert into relaxed values (1, 'nightly', 5)`)
		r.exec(sqlfence.SQLite("relaxed").SQL)
		_, err := r.db.ExecContext(t.Context(), `update relaxed set lock_name = 'Nightly', lock_epoch = 7`)
		wantScope(t, sqlfence.Explain(err), "Nightly", 7, "nightly", 5)
		r.exec(`update relaxed set lock_name = 'Nightly', lock_epoch = null`) // to another lock
	})
}

func TestAnErrorWithTheTextOfARefusalIsNone(t *testing.T) {
	const text = `epochfence: token refused: {"lock": "a", "token": 7, "row_lock": "a", "row_token": 8}`
	r := postgresRig(t)
	for _, statement := range []string{
		`do $$ begin raise exception using errcode = 'P0001', message = '` + text + `'; end $$`,
		`do $$ begin raise exception using errcode = 'XF031', message = '` + text + `'; end $$`,
		`do $$ begin raise exception using errcode = 'XF030', message = 'epochfence: token refused: {"lock'; end $$`,
		`do $$ begin raise exception using errcode = 'XF030', message = 'another text'; end $$`,
	} {
		_, err := r.db.ExecContext(t.Context(), statement)
		if err == nil || sqlfence.Explain(err) != err {
			t.Errorf("%s: %v", statement, sqlfence.Explain(err))
		}
	}
	r = sqliteRig(t)
	_, err := r.db.ExecContext(t.Context(), `select * from [`+text+`]`)
	if err == nil || sqlfence.Explain(err) != err {
		t.Errorf("%v", sqlfence.Explain(err))
	}
	if err := sqlfence.Explain(nil); err != nil {
		t.Error(err)
	}
}
