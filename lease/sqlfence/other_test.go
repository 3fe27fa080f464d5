package sqlfence_test

import (
	"database/sql"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
)

// The text that docs/leases.md has for other databases, on the two that are here, without a function
// and a trigger.
func TestTheTextForOtherDatabasesComparesLikeTheFunctionAndTheTrigger(t *testing.T) {
	data, err := os.ReadFile("testdata/other_databases.sql")
	if err != nil {
		t.Fatal(err)
	}
	write, read, ok := strings.Cut(numberedEach(string(data)), "\n\n")
	if !ok {
		t.Fatal("want two statements")
	}
	once := strings.Replace(write, "lock_epoch <= $", "lock_epoch < $", 1)
	if once == write {
		t.Fatal("the statement has no <=")
	}
	eachDatabase(t, func(t *testing.T, r *rig) {
		r.exec(`create table plain (id integer primary key, balance integer not null default 100, lock_name text, lock_epoch bigint check (lock_epoch > 0))`)
		on := func(statement string) string { return strings.Replace(statement, " account ", " plain ", 1) }
		said := func(statement string, id int, lock string, token int64) (outcome string) {
			tx, err := r.db.BeginTx(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = tx.Rollback() }()
			result, err := tx.ExecContext(t.Context(), on(statement), 1, lock, token, id, lock, token)
			if err != nil {
				return "invalid"
			}
			n, err := result.RowsAffected()
			if err != nil {
				t.Fatal(err)
			}
			if n == 1 {
				if err := tx.Commit(); err != nil {
					t.Fatal(err)
				}
				return "written"
			}
			var seenLock sql.NullString
			var seen sql.NullInt64
			switch err := tx.QueryRowContext(t.Context(), on(read), id).Scan(&seenLock, &seen); {
			case errors.Is(err, sql.ErrNoRows):
				return "absent"
			case err != nil:
				t.Fatal(err)
			}
			return fmt.Sprintf("%s %d", seenLock.String, seen.Int64)
		}
		r.exec(`insert into plain (id) values (1)`)
		for _, step := range []struct {
			statement string
			id        int
			lock      string
			token     int64
			want      string
		}{
			{write, 1, "orders/3", 0, "invalid"},
			{write, 1, "orders/3", 7, "written"},
			{write, 1, "orders/3", 7, "written"},
			{once, 1, "orders/3", 7, "orders/3 7"},
			{once, 1, "orders/3", 8, "written"},
			{write, 1, "orders/3", 7, "orders/3 8"},
			{write, 1, "orders/11", 9, "orders/3 8"},
			{write, 2, "orders/3", 9, "absent"},
		} {
			if got := said(step.statement, step.id, step.lock, step.token); got != step.want {
				t.Errorf("token %d of %s on row %d: %q, want %q", step.token, step.lock, step.id, got, step.want)
			}
		}
		r.exec(`update plain set lock_name = 'orders/11', lock_epoch = null where lock_name = 'orders/3' and lock_epoch <= 8`)
		if got := said(write, 1, "orders/3", 9); got != "orders/11 0" {
			t.Errorf("the old lock, after the move: %q", got)
		}
		if got := said(once, 1, "orders/11", 1); got != "written" {
			t.Errorf("the new lock, after the move: %q", got)
		}
	})
}

// numberedEach numbers the parameters of each statement.
func numberedEach(statements string) string {
	var all []string
	for statement := range strings.SplitSeq(statements, "\n\n") {
		all = append(all, numbered(statement))
	}
	return strings.Join(all, "\n\n")
}
