package sqlfence_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/epochfence/epochfence/internal/sql/sqltx"
	"github.com/epochfence/epochfence/lease/sqlfence"
)

var levels = []sql.IsolationLevel{sql.LevelReadCommitted, sql.LevelRepeatableRead, sql.LevelSerializable}

// An owner reads the row, finds it to be its own, and is frozen. When it continues, it commits what it
// had in mind.
func TestAnOwnerThatIsFrozenBetweenItsCheckAndItsWriteChangesNothing(t *testing.T) {
	for _, level := range levels {
		t.Run("PostgreSQL/"+level.String(), func(t *testing.T) {
			r := postgresRig(t)
			wantNone(t, r.withdraw(r.db, nightly, 7))
			frozen := r.begin(level)
			var seen int64
			if err := frozen.QueryRowContext(t.Context(), `select lock_epoch from account`).Scan(&seen); err != nil || seen != 7 {
				t.Fatal(seen, err)
			}
			wantNone(t, r.withdraw(r.db, nightly, 8))
			err := r.withdraw(frozen, nightly, 7)
			if level == sql.LevelReadCommitted {
				wantRefused(t, err, nightly, 7, 8)
			} else {
				wantSerialization(t, err)
				_ = frozen.Rollback()
				wantRefused(t, r.withdraw(r.begin(level), nightly, 7), nightly, 7, 8)
			}
			r.wantRow("account", "98 billing/nightly 8")
		})
	}
	t.Run("SQLite", func(t *testing.T) {
		r := sqliteRig(t)
		wantNone(t, r.withdraw(r.db, nightly, 7))
		frozen, err := r.db.Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = frozen.Close() }()
		for _, statement := range []string{`begin deferred`, `select lock_epoch from account`} {
			if _, err := frozen.ExecContext(t.Context(), statement); err != nil {
				t.Fatal(err)
			}
		}
		wantNone(t, r.withdraw(r.db, nightly, 8))
		if err := r.withdraw(frozen, nightly, 7); err == nil || sqltx.SQLite.Classify(err) != sqltx.Busy {
			t.Errorf("err = %v, want that the snapshot is old", err) // SQLITE_BUSY_SNAPSHOT
		}
		if _, err := frozen.ExecContext(t.Context(), `rollback`); err != nil {
			t.Fatal(err)
		}
		wantRefused(t, r.withdraw(frozen, nightly, 7), nightly, 7, 8)
		r.wantRow("account", "98 billing/nightly 8")
	})
}

// One owner has written and not committed. The write of the other one waits for that, and is compared
// with what is left.
func TestAWriteThatWaitedIsComparedWithWhatItWaitedFor(t *testing.T) {
	for _, level := range levels {
		for _, c := range []struct {
			name              string
			first, second     int64
			commits, accepted bool
		}{
			{"the later owner commits first", 8, 7, true, false},
			{"the later owner rolls back", 8, 7, false, true},
			{"the earlier owner commits first", 7, 8, true, true},
			{"the earlier owner rolls back", 7, 8, false, true},
			{"the same owner twice", 7, 7, true, true},
		} {
			t.Run(level.String()+"/"+c.name, func(t *testing.T) {
				r := postgresRig(t)
				wantNone(t, r.withdraw(r.db, nightly, 6))
				first, second := r.begin(level), r.begin(level)
				wantNone(t, r.withdraw(first, nightly, c.first))
				done := make(chan error, 1)
				go func() { done <- r.withdraw(second, nightly, c.second) }()
				r.awaitWaiting()
				end := first.Rollback
				if c.commits {
					end = first.Commit
				}
				wantNone(t, end())
				err := <-done
				if c.commits && level != sql.LevelReadCommitted {
					wantSerialization(t, err)
					_ = second.Rollback()
					second = r.begin(level)
					err = r.withdraw(second, nightly, c.second)
				}
				want := c.first
				if c.accepted {
					wantNone(t, err)
					wantNone(t, second.Commit())
					want = c.second
				} else {
					wantRefused(t, err, nightly, c.second, c.first)
					if err := second.Commit(); err == nil {
						t.Error("a refused transaction commits")
					}
				}
				applied := 1
				if c.commits {
					applied++
				}
				if c.accepted {
					applied++
				}
				r.wantRow("account", fmt.Sprintf("%d %s %d", 100-applied, nightly, want))
			})
		}
	}
}

// The frozen owner has the lock of the row, until PostgreSQL ends its transaction.
func TestAnOwnerThatIsFrozenInItsTransactionIsEndedAndItsSuccessorWrites(t *testing.T) {
	r := postgresRig(t)
	frozen := r.begin(sql.LevelReadCommitted)
	wantNone(t, r.withdraw(frozen, nightly, 7))
	if _, err := frozen.ExecContext(t.Context(), `set local idle_in_transaction_session_timeout = '300ms'`); err != nil { // which begins now
		t.Fatal(err)
	}
	wantNone(t, r.withdraw(r.db, nightly, 8)) // waits
	if err := frozen.Commit(); err == nil {
		t.Error("the frozen owner commits")
	}
	wantRefused(t, r.withdraw(r.db, nightly, 7), nightly, 7, 8)
	r.wantRow("account", "99 billing/nightly 8")
}

// Sixteen owners write the row eight times each, all at once.
func TestTokensNeverDecreaseInTheOrderOfCommits(t *testing.T) {
	eachDatabase(t, func(t *testing.T, r *rig) {
		identity := `integer primary key autoincrement`
		if r.set != r.setOnce {
			identity = `bigint generated always as identity`
		}
		r.exec(`create table written (n ` + identity + `, token bigint, balance integer)`)
		var all sync.WaitGroup
		for token := range int64(16) {
			all.Go(func() {
				for range 8 {
					if err := r.withdrawAndLog(token + 1); err != nil {
						var refused *sqlfence.RefusedError
						if !errors.As(err, &refused) || refused.Seen <= token+1 {
							t.Error(err)
						}
						return
					}
				}
			})
		}
		all.Wait()
		var tokens, balances []int64
		rows, err := r.db.QueryContext(t.Context(), `select token, balance from written order by n`)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = rows.Close() }()
		for rows.Next() {
			var token, balance int64
			if err := rows.Scan(&token, &balance); err != nil {
				t.Fatal(err)
			}
			tokens, balances = append(tokens, token), append(balances, balance)
		}
		if err := rows.Err(); err != nil {
			t.Fatal(err)
		}
		if !slices.IsSorted(tokens) || len(tokens) < 8 || tokens[len(tokens)-1] != 16 {
			t.Errorf("the tokens, in the order of commits: %v", tokens)
		}
		for i, balance := range balances {
			if balance != int64(99-i) {
				t.Fatalf("the balances, in the order of commits: %v", balances)
			}
		}
	})
}

// withdrawAndLog commits with the write what it has written, while it has the lock of the row.
func (r *rig) withdrawAndLog(token int64) error {
	tx, err := r.db.BeginTx(r.Context(), nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	if err := r.withdraw(tx, nightly, token); err != nil {
		return err
	}
	if _, err := tx.ExecContext(r.Context(), `insert into written (token, balance) select lock_epoch, balance from account where id = 1`); err != nil {
		return err
	}
	return tx.Commit()
}

func (r *rig) begin(level sql.IsolationLevel) *sql.Tx {
	r.Helper()
	tx, err := r.db.BeginTx(r.Context(), &sql.TxOptions{Isolation: level})
	if err != nil {
		r.Fatal(err)
	}
	r.Cleanup(func() { _ = tx.Rollback() })
	// BEGIN takes no snapshot; the first statement does.
	if _, err := tx.ExecContext(r.Context(), `select from account`); err != nil {
		r.Fatal(err)
	}
	return tx
}

// awaitWaiting returns when a statement waits for another transaction.
func (r *rig) awaitWaiting() {
	r.Helper()
	ctx, cancel := context.WithTimeout(r.Context(), time.Minute)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		var waits bool
		err := r.db.QueryRowContext(ctx, `select exists (select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock')`).Scan(&waits)
		if err != nil {
			r.Fatal(err)
		}
		if waits {
			return
		}
		<-tick.C
	}
}

func wantSerialization(t *testing.T, err error) {
	t.Helper()
	if sqltx.SQLState(err) != "40001" {
		t.Errorf("err = %v, want a serialization failure", err)
	}
}
