package docs

import (
	"context"
	"database/sql"
	"errors"
	"path/filepath"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/epochfence/epochfence/cas/memstore"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/servers/pgtest"
	"github.com/epochfence/epochfence/lease"
	"github.com/epochfence/epochfence/lease/sqlfence"
	"github.com/epochfence/epochfence/sinks/sqlsink"
)

// nightly makes the report, in one process at a time.
func nightly(ctx context.Context, member *lease.Member, db *sql.DB, report func(context.Context) (string, error)) error {
	h, err := member.Acquire(ctx, "nightly") // waits until no other process has it
	if err != nil {
		return err
	}
	defer func() { _ = h.Release(context.WithoutCancel(ctx)) }()

	// This write raises the token of the row. All later writes of earlier holders are refused.
	token := h.Generation()
	err = sqlfence.Exec(ctx, db, `update report set lock_name = 'billing/nightly', lock_epoch = ?1 where id = 1`, token)
	if err != nil {
		return err
	}
	text, err := report(h.Context()) // which ends when the lease is lost
	if err != nil {
		return err
	}
	return sqlfence.Exec(ctx, db, `update report set lock_name = 'billing/nightly', lock_epoch = ?1, text = ?2 where id = 1`, token, text)
}

// A process stands still while it makes the report. Another one makes it meanwhile.
func TestTheNightlyReportOfAProcessThatWasReplacedIsRefused(t *testing.T) {
	db, err := sql.Open("sqlite", filepath.Join(t.TempDir(), "report.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	if _, err := db.ExecContext(t.Context(), `create table report (id integer primary key, text text, lock_name text, lock_epoch integer);
		insert into report (id, text) values (1, '');`+sqlfence.SQLite("report").SQL); err != nil {
		t.Fatal(err)
	}
	store := memstore.New()
	join := func() *lease.Member {
		m, err := lease.Open(t.Context(), store, lease.Options{Group: "billing", TTL: 2 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	a, b := join(), join()
	defer b.Close()
	err = nightly(t.Context(), a, db, func(context.Context) (string, error) {
		a.Close()
		return "late", nightly(t.Context(), b, db, func(context.Context) (string, error) { return "in time", nil })
	})
	if e, ok := errors.AsType[*sqlfence.RefusedError](err); !ok || e.Lock != "billing/nightly" || e.Token >= e.Seen {
		t.Errorf("err = %v, want a refusal", err)
	}
	var text string
	if err := db.QueryRowContext(t.Context(), `select text from report`).Scan(&text); err != nil || text != "in time" {
		t.Errorf("the report is %q, err = %v", text, err)
	}
}

// withdraw changes a row of PostgreSQL under a token of the lock "billing/nightly".
func withdraw(ctx context.Context, pool *pgxpool.Pool, token int64, account string, amount int) error {
	done, err := pool.Exec(ctx, `update account set balance = balance - $3,
		lock_name = 'billing/nightly', lock_epoch = epochfence_token(lock_name, lock_epoch, 'billing/nightly', $2)
		where id = $1`, account, token, amount)
	if err != nil {
		return sqlfence.Explain(err)
	}
	if done.RowsAffected() == 0 {
		return errNoAccount // a refusal would be an error
	}
	return nil
}

var errNoAccount = errors.New("there is no such account")

func TestAWithdrawalUnderAnOldTokenIsRefused(t *testing.T) {
	pool, err := pgxpool.New(t.Context(), pgtest.Start(t).URL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	for _, text := range []string{script(t, "account.sql"), sqlfence.PostgreSQL().SQL, `insert into account values ('anna', 100)`} {
		if _, err := pool.Exec(t.Context(), text); err != nil {
			t.Fatal(err)
		}
	}
	for _, token := range []int64{7, 7, 8} {
		if err := withdraw(t.Context(), pool, token, "anna", 10); err != nil {
			t.Error(err)
		}
	}
	if e, ok := errors.AsType[*sqlfence.RefusedError](withdraw(t.Context(), pool, 7, "anna", 10)); !ok || e.Seen != 8 {
		t.Errorf("err = %v, want a refusal", e)
	}
	if err := withdraw(t.Context(), pool, 8, "ben", 10); !errors.Is(err, errNoAccount) {
		t.Error(err)
	}
	var balance int
	if err := pool.QueryRow(t.Context(), `select balance from account`).Scan(&balance); err != nil || balance != 70 {
		t.Errorf("the balance is %d, %v", balance, err)
	}
}

// book adds an entry under a token of the lock "billing/nightly". The token is in the only row of the
// table entry_lock.
func book(ctx context.Context, pool *pgxpool.Pool, token int64, account string, amount int) error {
	done, err := pool.Exec(ctx, `with held as (
			update entry_lock set lock_name = 'billing/nightly',
				lock_epoch = epochfence_token(lock_name, lock_epoch, 'billing/nightly', $1)
			returning lock_epoch)
		insert into entry (account, amount) select $2, $3 from held`, token, account, amount)
	if err == nil && done.RowsAffected() == 0 {
		return errNoLock // the table entry_lock is empty
	}
	return sqlfence.Explain(err)
}

var errNoLock = errors.New("there is no row with the token")

func TestAnEntryUnderAnOldTokenIsRefused(t *testing.T) {
	pool, err := pgxpool.New(t.Context(), pgtest.Start(t).URL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	if _, err := pool.Exec(t.Context(), sqlfence.PostgreSQL().SQL+`;
		create table entry (account text, amount bigint);
		create table entry_lock (lock_name text, lock_epoch bigint);
		insert into entry_lock default values`); err != nil {
		t.Fatal(err)
	}
	for _, token := range []int64{7, 7, 8} {
		if err := book(t.Context(), pool, token, "anna", 10); err != nil {
			t.Error(err)
		}
	}
	if e, ok := errors.AsType[*sqlfence.RefusedError](book(t.Context(), pool, 7, "anna", 10)); !ok || e.Seen != 8 {
		t.Errorf("err = %v, want a refusal", e)
	}
	var entries int
	if err := pool.QueryRow(t.Context(), `select count(*) from entry`).Scan(&entries); err != nil || entries != 3 {
		t.Errorf("%d entries, %v; want 3", entries, err)
	}
}

// The account was one of orders/3, and belongs to orders/11 since partitions were added.
func TestAnAccountBelongsToTheLockThatItWasMovedTo(t *testing.T) {
	pool, err := pgxpool.New(t.Context(), pgtest.Start(t).URL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	for _, text := range []string{script(t, "account.sql"), sqlfence.PostgreSQL().SQL,
		`create table moved_account (account text); insert into moved_account values ('anna')`,
		`insert into account select name, 100, 'billing/orders/3', 900 from unnest(array['anna', 'ben']) as name`} {
		if _, err := pool.Exec(t.Context(), text); err != nil {
			t.Fatal(err)
		}
	}
	write := func(lock string, token int64) error {
		_, err := pool.Exec(t.Context(), `update account set lock_name = $1, lock_epoch = epochfence_token(lock_name, lock_epoch, $1, $2) where id = 'anna'`, lock, token)
		return sqlfence.Explain(err)
	}
	isOfAnother := func(err error) {
		t.Helper()
		if _, ok := errors.AsType[*sqlfence.ScopeError](err); !ok {
			t.Errorf("err = %v, want that the account has the token of another lock", err)
		}
	}
	isOfAnother(write("billing/orders/11", 1))
	for want, token := range []int64{899, 900} {
		done, err := pool.Exec(t.Context(), script(t, "move.sql"), token)
		if err != nil || done.RowsAffected() != int64(want) {
			t.Errorf("token %d moves %d accounts, %v", token, done.RowsAffected(), err)
		}
	}
	if err := write("billing/orders/11", 1); err != nil {
		t.Error(err)
	}
	isOfAnother(write("billing/orders/3", 901))
	var ben string
	if err := pool.QueryRow(t.Context(), `select lock_name from account where id = 'ben'`).Scan(&ben); err != nil || ben != "billing/orders/3" {
		t.Errorf("the other account is of %q, %v", ben, err)
	}
}

// renew extends the subscriptions that have ended, in one process at a time.
func renew(ctx context.Context, member *lease.Member, sink *sqlsink.Sink) error {
	return lease.Do(ctx, member, sink, "renewals", func(ctx context.Context, tx *sqlsink.Tx, _ epoch.Epoch) error {
		_, err := tx.ExecContext(ctx, `insert into invoice (customer, amount) select customer, price from subscription where ends <= current_date`)
		if err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, `update subscription set ends = date(ends, '+1 month') where ends <= current_date`)
		return err
	})
}

func TestASubscriptionIsRenewedOnceHoweverManyProcessesWakeUp(t *testing.T) {
	db, err := sql.Open("sqlite", "file:"+filepath.Join(t.TempDir(), "subscriptions.db")+"?_pragma=journal_mode(wal)&_txlock=immediate&_pragma=busy_timeout(5000)")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	if _, err := db.ExecContext(t.Context(), `create table subscription (customer text, price integer, ends text);
		create table invoice (customer text, amount integer);
		insert into subscription values ('anna', 12, date('now', '-3 days')), ('ben', 7, date('now', '+3 days'))`); err != nil {
		t.Fatal(err)
	}
	if err := sqlsink.Migrate(t.Context(), db, sqlsink.SQLite, sqlsink.Options{}); err != nil {
		t.Fatal(err)
	}
	sink, err := sqlsink.Open(t.Context(), db, sqlsink.SQLite, sqlsink.Options{})
	if err != nil {
		t.Fatal(err)
	}
	store := memstore.New()
	done := make(chan error)
	for range 3 {
		m, err := lease.Open(t.Context(), store, lease.Options{Group: "billing", TTL: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(m.Close)
		go func() { done <- renew(t.Context(), m, sink) }()
	}
	for range 3 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	var invoices string
	if err := db.QueryRowContext(t.Context(), `select group_concat(customer || ' ' || amount) from invoice`).Scan(&invoices); err != nil || invoices != "anna 12" {
		t.Errorf("the invoices are %q, %v", invoices, err)
	}
}
