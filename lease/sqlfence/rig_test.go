package sqlfence_test

import (
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"testing"

	_ "github.com/jackc/pgx/v5/stdlib"
	_ "modernc.org/sqlite"

	"github.com/epochfence/epochfence/internal/servers/pgtest"
	"github.com/epochfence/epochfence/lease/sqlfence"
)

// rig is a table account in one database, with account 1.
type rig struct {
	testing.TB
	db *sql.DB

	// set is the assignment of both columns from the parameters 1 and 2, in each form.
	set, setOnce string

	once string // the name of the table in which SQLite's trigger has the form <
}

func eachDatabase(t *testing.T, test func(t *testing.T, r *rig)) {
	t.Run("SQLite", func(t *testing.T) { test(t, sqliteRig(t)) })
	t.Run("PostgreSQL", func(t *testing.T) { test(t, postgresRig(t)) })
}

func sqliteRig(t *testing.T) *rig {
	r := &rig{TB: t, set: `lock_name = $1, lock_epoch = $2`, setOnce: `lock_name = $1, lock_epoch = $2`, once: "account once"}
	r.db = r.open("sqlite", "file:"+filepath.Join(t.TempDir(), "shop.db")+"?_pragma=journal_mode(wal)&_pragma=busy_timeout(30000)&_txlock=immediate")
	r.create()
	r.exec(sqlfence.SQLite("account").SQL)
	r.exec(sqlfence.SQLiteOnce("account once").SQL)
	return r
}

func postgresRig(t *testing.T) *rig {
	r := &rig{
		TB: t, once: "account once",
		set:     `lock_name = $1, lock_epoch = epochfence_token(lock_name, lock_epoch, $1, $2)`,
		setOnce: `lock_name = $1, lock_epoch = epochfence_token(lock_name, lock_epoch, $1, $2, once => true)`,
	}
	r.db = r.open("pgx", pgtest.Start(t).URL)
	r.create()
	r.exec(sqlfence.PostgreSQL().SQL)
	return r
}

func (r *rig) open(driver, source string) *sql.DB {
	r.Helper()
	db, err := sql.Open(driver, source)
	if err != nil {
		r.Fatal(err)
	}
	r.Cleanup(func() { _ = db.Close() })
	return db
}

func (r *rig) create() {
	r.Helper()
	for _, table := range []string{"account", `"account once"`} {
		r.exec(`create table ` + table + ` (id integer primary key, balance integer not null default 100, lock_name text, lock_epoch bigint)`)
		r.exec(`insert into ` + table + ` (id) values (1)`)
	}
}

func (r *rig) exec(statement string, args ...any) {
	r.Helper()
	if _, err := r.db.ExecContext(r.Context(), statement, args...); err != nil {
		r.Fatalf("%s: %v", statement, err)
	}
}

// withdraw takes one from account 1, in the form <=.
func (r *rig) withdraw(on sqlfence.DB, lock, token any) error {
	return sqlfence.Exec(r.Context(), on, `update account set balance = balance - 1, `+r.set+` where id = 1`, lock, token)
}

// withdrawOnce is in the form <.
func (r *rig) withdrawOnce(on sqlfence.DB, lock, token any) error {
	return sqlfence.Exec(r.Context(), on, `update "`+r.once+`" set balance = balance - 1, `+r.setOnce+` where id = 1`, lock, token)
}

func (r *rig) wantRow(table, want string) {
	r.Helper()
	var balance int
	var lock sql.NullString
	var token sql.NullInt64
	err := r.db.QueryRowContext(r.Context(), `select balance, lock_name, lock_epoch from "`+table+`" where id = 1`).Scan(&balance, &lock, &token)
	got := fmt.Sprintf("%d %s %d", balance, lock.String, token.Int64)
	if !lock.Valid {
		got = fmt.Sprintf("%d nobody", balance)
	}
	if err != nil || got != want {
		r.Errorf("the row is %q, %v; want %q", got, err, want)
	}
}

// wantRefused wants a RefusedError, and returns nothing that a test has to look at.
func wantRefused(t testing.TB, err error, lock string, token, seen int64) {
	t.Helper()
	var e *sqlfence.RefusedError
	if !errors.As(err, &e) || e.Lock != lock || e.Token != token || e.Seen != seen || errors.Unwrap(e) == nil {
		t.Errorf("err = %v, want a refusal of token %d of %q by %d", err, token, lock, seen)
	}
}

func wantScope(t testing.TB, err error, lock string, token int64, seenLock string, seen int64) {
	t.Helper()
	var e *sqlfence.ScopeError
	if !errors.As(err, &e) || e.Lock != lock || e.Token != token || e.SeenLock != seenLock || e.Seen != seen || errors.Unwrap(e) == nil {
		t.Errorf("err = %v, want that the row has token %d of %q, and not of %q", err, seen, seenLock, lock)
	}
}

func wantNone(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
}

// numbered are the parameters as PostgreSQL's drivers want them.
func numbered(statement string) string {
	n := 0
	return regexp.MustCompile(`\?`).ReplaceAllStringFunc(statement, func(string) string { n++; return fmt.Sprintf("$%d", n) })
}
