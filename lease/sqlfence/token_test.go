package sqlfence_test

import (
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/epochfence/epochfence/lease/sqlfence"
)

const nightly = "billing/nightly"

func TestALowerTokenIsRefusedAndAnEqualOneIsNot(t *testing.T) {
	eachDatabase(t, func(t *testing.T, r *rig) {
		wantNone(t, r.withdraw(r.db, nightly, 7))
		wantNone(t, r.withdraw(r.db, nightly, 7))
		wantNone(t, r.withdraw(r.db, nightly, 8))
		wantRefused(t, r.withdraw(r.db, nightly, 7), nightly, 7, 8)
		wantNone(t, r.withdraw(r.db, nightly, 8))
		r.wantRow("account", "96 billing/nightly 8")
	})
}

func TestATokenWritesARowOnceInTheStrictForm(t *testing.T) {
	eachDatabase(t, func(t *testing.T, r *rig) {
		wantNone(t, r.withdrawOnce(r.db, nightly, 7))
		err := r.withdrawOnce(r.db, nightly, 7) // as after a lost answer
		wantRefused(t, err, nightly, 7, 7)
		if !strings.Contains(err.Error(), "it has written the row before") {
			t.Error(err)
		}
		wantNone(t, r.withdrawOnce(r.db, nightly, 8))
		wantRefused(t, r.withdrawOnce(r.db, nightly, 7), nightly, 7, 8)
		r.wantRow("account once", "98 billing/nightly 8")
	})
}

func TestAFormThatIsNullIsTheStrictOne(t *testing.T) {
	r := postgresRig(t)
	wantNone(t, r.withdraw(r.db, nightly, 7))
	_, err := r.db.ExecContext(t.Context(), `select epochfence_token(lock_name, lock_epoch, $1, $2, null) from account`, nightly, 7)
	wantRefused(t, sqlfence.Explain(err), nightly, 7, 7)
}

func TestNumbersOfTwoLocksAreNotCompared(t *testing.T) {
	eachDatabase(t, func(t *testing.T, r *rig) {
		wantNone(t, r.withdraw(r.db, "orders/3", 900))
		for _, token := range []int64{1, 900, 901, math.MaxInt64} {
			wantScope(t, r.withdraw(r.db, "orders/11", token), "orders/11", token, "orders/3", 900)
		}
		r.wantRow("account", "99 orders/3 900")
	})
}

func TestAMovedRowTakesTheNewLockAndNoTokenOfTheOld(t *testing.T) {
	eachDatabase(t, func(t *testing.T, r *rig) {
		const move = `update account set lock_name = 'orders/11', lock_epoch = null where lock_name = 'orders/3' and lock_epoch <= $1`
		wantNone(t, r.withdraw(r.db, "orders/3", 900))
		if err := sqlfence.Exec(t.Context(), r.db, move, 899); !errors.Is(err, sqlfence.ErrNoRow) {
			t.Errorf("an owner that was replaced moves a row: %v", err)
		}
		wantNone(t, sqlfence.Exec(t.Context(), r.db, move, 900))
		r.wantRow("account", "99 orders/11 0")
		for _, token := range []int64{1, 900, math.MaxInt64} {
			wantScope(t, r.withdraw(r.db, "orders/3", token), "orders/3", token, "orders/11", 0)
		}
		wantNone(t, r.withdraw(r.db, "orders/11", 2))
		wantRefused(t, r.withdraw(r.db, "orders/11", 1), "orders/11", 1, 2)
		r.wantRow("account", "98 orders/11 2")
	})
}

func TestARowThatNobodyHasWrittenTakesAnyToken(t *testing.T) {
	eachDatabase(t, func(t *testing.T, r *rig) {
		for _, unwritten := range []string{`null, null`, `null, 0`} {
			for _, token := range []int64{1, 1 << 53, math.MaxInt64} {
				for _, table := range []string{"account", "account once"} {
					r.exec(`delete from "` + table + `"`)
					r.exec(`insert into "` + table + `" (id, lock_name, lock_epoch) values (1, ` + unwritten + `)`)
				}
				wantNone(t, r.withdraw(r.db, nightly, token))
				wantNone(t, r.withdrawOnce(r.db, nightly, token))
			}
		}
	})
}

func TestARowWithANumberAndNoNameIsNoUnwrittenOne(t *testing.T) {
	eachDatabase(t, func(t *testing.T, r *rig) {
		for _, number := range []int64{5, -5} {
			r.exec(`delete from account`)
			r.exec(`insert into account (id, lock_epoch) values (1, $1)`, number)
			wantScope(t, r.withdraw(r.db, nightly, 9), nightly, 9, "", number)
		}
	})
}

func TestAWriteWithoutATokenIsRefused(t *testing.T) {
	eachDatabase(t, func(t *testing.T, r *rig) {
		refused := func(lock, token any) {
			t.Helper()
			for _, err := range []error{r.withdraw(r.db, lock, token), r.withdrawOnce(r.db, lock, token)} {
				if !errors.Is(err, sqlfence.ErrNoToken) || !strings.HasPrefix(err.Error(), "sqlfence: ") {
					t.Errorf("token %v of %v: %v", token, lock, err)
				}
			}
		}
		all := func() {
			t.Helper()
			for _, token := range []any{0, -1, int64(math.MinInt64), nil} {
				refused(nightly, token)
			}
			refused("", 7)
			refused(nil, 7)
			refused(nil, nil)
			refused("", nil)
		}
		all()
		r.wantRow("account", "100 nobody")
		wantNone(t, r.withdraw(r.db, nightly, 7))
		wantNone(t, r.withdrawOnce(r.db, nightly, 7))
		all()
		refused("another", 0)
		r.wantRow("account", "99 billing/nightly 7")
	})
}

func TestTokensAreComparedToTheLastDigit(t *testing.T) {
	eachDatabase(t, func(t *testing.T, r *rig) {
		for _, token := range []int64{1 << 53, math.MaxInt64 - 1} {
			wantNone(t, r.withdraw(r.db, nightly, token+1))
			wantRefused(t, r.withdraw(r.db, nightly, token), nightly, token, token+1)
		}
		wantNone(t, r.withdraw(r.db, nightly, int64(math.MaxInt64)))
	})
}

func TestANegativeTokenInARowIsBelowAllTokens(t *testing.T) {
	eachDatabase(t, func(t *testing.T, r *rig) {
		r.exec(`delete from account`)
		r.exec(`insert into account (id, lock_name, lock_epoch) values (1, $1, -9223372036854775808)`, nightly)
		wantNone(t, r.withdraw(r.db, nightly, 1))
	})
}

func TestAnyNameIsALocks(t *testing.T) {
	eachDatabase(t, func(t *testing.T, r *rig) {
		for _, lock := range []string{`it's "5"`, "{\"lock\": \"x\"}", "two\nlines\t\\", "Ä/日本", "epochfence: token refused: {", " ", "a%b_", strings.Repeat("long", 500)} {
			r.exec(`delete from account`)
			r.exec(`insert into account (id) values (1)`)
			wantNone(t, r.withdraw(r.db, lock, 8))
			wantRefused(t, r.withdraw(r.db, lock, 7), lock, 7, 8)
			wantScope(t, r.withdraw(r.db, lock+" ", 9), lock+" ", 9, lock, 8)
		}
	})
}

func TestARefusalOfOneRowUndoesTheWholeStatement(t *testing.T) {
	eachDatabase(t, func(t *testing.T, r *rig) {
		r.exec(`insert into account (id, lock_name, lock_epoch) values (2, $1, 8)`, nightly)
		_, err := r.db.ExecContext(t.Context(), `update account set balance = 0, `+r.set, nightly, 7)
		wantRefused(t, sqlfence.Explain(err), nightly, 7, 8)
		r.wantRow("account", "100 nobody")
	})
}

func TestAnInsertOverARowIsComparedWithIt(t *testing.T) {
	eachDatabase(t, func(t *testing.T, r *rig) {
		set := strings.NewReplacer("lock_name, lock_epoch,", "account.lock_name, account.lock_epoch,", "$1", "excluded.lock_name", "$2", "excluded.lock_epoch").Replace(r.set)
		upsert := func(token int64) error {
			return sqlfence.Exec(t.Context(), r.db, `insert into account (id, balance, lock_name, lock_epoch) values (5, $1, $2, $3)
				on conflict (id) do update set balance = excluded.balance, `+set, token, nightly, token)
		}
		for range 2 {
			wantNone(t, upsert(8))
		}
		wantRefused(t, upsert(7), nightly, 7, 8)
		wantNone(t, upsert(9))
	})
}

func TestARowThatDoesNotExistIsNoRefusal(t *testing.T) {
	eachDatabase(t, func(t *testing.T, r *rig) {
		r.exec(`delete from account`)
		if err := r.withdraw(r.db, nightly, 7); !errors.Is(err, sqlfence.ErrNoRow) {
			t.Error(err)
		}
	})
}

func TestARefusedTransactionIsRolledBack(t *testing.T) {
	eachDatabase(t, func(t *testing.T, r *rig) {
		wantNone(t, r.withdraw(r.db, nightly, 8))
		tx, err := r.db.BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tx.ExecContext(t.Context(), `insert into account (id) values (2)`); err != nil {
			t.Fatal(err)
		}
		wantRefused(t, r.withdraw(tx, nightly, 7), nightly, 7, 8)
		wantNone(t, tx.Rollback())
		var n int
		if err := r.db.QueryRowContext(t.Context(), `select count(*) from account`).Scan(&n); err != nil || n != 1 {
			t.Errorf("%d rows, %v", n, err)
		}
	})
}

func TestTheScriptsMayBeRunAgain(t *testing.T) {
	eachDatabase(t, func(t *testing.T, r *rig) {
		wantNone(t, r.withdraw(r.db, nightly, 8))
		if r.set == r.setOnce {
			r.exec(sqlfence.SQLite("account").SQL)
		} else {
			r.exec(sqlfence.PostgreSQL().SQL)
		}
		wantRefused(t, r.withdraw(r.db, nightly, 7), nightly, 7, 8)
	})
}
