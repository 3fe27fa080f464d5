package sqlfence_test

import (
	"errors"
	"testing"

	"github.com/epochfence/epochfence/lease/sqlfence"
)

func TestAStatementThatGoesOnAfterConflictsIsRefusedToo(t *testing.T) {
	r := sqliteRig(t)
	wantNone(t, r.withdraw(r.db, nightly, 8))
	for _, or := range []string{"ignore", "replace", "fail", "abort"} {
		_, err := r.db.ExecContext(t.Context(), `update or `+or+` account set balance = 0, lock_name = $1, lock_epoch = 7`, nightly)
		wantRefused(t, sqlfence.Explain(err), nightly, 7, 8)
	}
	r.wantRow("account", "99 billing/nightly 8")
}

func TestAWriteOfOneOfTheColumnsIsCompared(t *testing.T) {
	r := sqliteRig(t)
	wantNone(t, r.withdraw(r.db, nightly, 8))
	_, err := r.db.ExecContext(t.Context(), `update account set lock_epoch = 7`)
	wantRefused(t, sqlfence.Explain(err), nightly, 7, 8)
	_, err = r.db.ExecContext(t.Context(), `update account set lock_name = 'another'`)
	wantScope(t, sqlfence.Explain(err), "another", 8, nightly, 8)
	for _, forgets := range []string{`lock_name = null, lock_epoch = null`, `lock_name = '', lock_epoch = null`, `lock_epoch = null`, `lock_epoch = 8.5`, `lock_epoch = 'x'`} {
		_, err := r.db.ExecContext(t.Context(), `update account set `+forgets)
		if !errors.Is(sqlfence.Explain(err), sqlfence.ErrNoToken) {
			t.Errorf("%s: %v", forgets, err)
		}
	}
	r.wantRow("account", "99 billing/nightly 8")
}

// As texts, 10 is below 9.
func TestAColumnThatKeepsTextTakesNoToken(t *testing.T) {
	r := sqliteRig(t)
	r.exec(`create table text (id integer primary key, lock_name text, lock_epoch text)`)
	r.exec(`insert into text (id) values (1)`)
	r.exec(sqlfence.SQLite("text").SQL)
	_, err := r.db.ExecContext(t.Context(), `update text set lock_name = 'a', lock_epoch = 9`)
	if !errors.Is(sqlfence.Explain(err), sqlfence.ErrNoToken) {
		t.Error(err)
	}
}

func TestATableAndItsTriggerMayHaveAnyName(t *testing.T) {
	r := sqliteRig(t)
	for quoted, name := range map[string]string{`"a ""b"" -- c"`: `a "b" -- c`, `"order"`: "order"} {
		r.exec(`create table ` + quoted + ` (id integer primary key, lock_name text, lock_epoch integer)`)
		r.exec(`insert into ` + quoted + ` values (1, 'a', 8)`)
		r.exec(sqlfence.SQLite(name).SQL)
		_, err := r.db.ExecContext(t.Context(), `update `+quoted+` set lock_epoch = 7`)
		wantRefused(t, sqlfence.Explain(err), "a", 7, 8)
	}
	if m := sqlfence.SQLite(`a/"b"`); m.Of != "sqlfence" || m.Version != 1 || m.Name != "token_a__b_" {
		t.Errorf("%q %d %q", m.Of, m.Version, m.Name)
	}
}
