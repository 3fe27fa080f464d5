package docs

import (
	"context"
	"database/sql"
	"errors"
	"path/filepath"
	"testing"
	"time"

	"github.com/epochfence/epochfence/cas/memstore"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/lease"
	"github.com/epochfence/epochfence/sinks/sqlsink"
)

var errReplaced = errors.New("another process makes the report")

// nightly makes the report, in one process at a time.
func nightly(ctx context.Context, member *lease.Member, db *sql.DB, report func(context.Context) (string, error)) error {
	h, err := member.Acquire(ctx, "nightly") // waits until no other process has it
	if err != nil {
		return err
	}
	defer func() { _ = h.Release(context.WithoutCancel(ctx)) }()

	// From here on, the statement below is refused to all who had the lease before.
	mine := h.Generation()
	if err := changeOne(ctx, db, `update report set generation = ?1 where generation < ?1`, mine); err != nil {
		return err
	}
	text, err := report(h.Context()) // which ends when the lease is lost
	if err != nil {
		return err
	}
	return changeOne(ctx, db, `update report set text = ?2 where generation = ?1`, mine, text)
}

func changeOne(ctx context.Context, db *sql.DB, statement string, args ...any) error {
	result, err := db.ExecContext(ctx, statement, args...)
	if err != nil {
		return err
	}
	if n, err := result.RowsAffected(); err != nil || n == 1 {
		return err
	}
	return errReplaced
}

// A process stands still while it makes the report. Another one makes it meanwhile.
func TestTheNightlyReportOfAProcessThatWasReplacedIsRefused(t *testing.T) {
	db, err := sql.Open("sqlite", filepath.Join(t.TempDir(), "report.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	if _, err := db.ExecContext(t.Context(), `create table report (text text, generation integer); insert into report values ('', 0)`); err != nil {
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
	if !errors.Is(err, errReplaced) {
		t.Errorf("err = %v, want %v", err, errReplaced)
	}
	var text string
	if err := db.QueryRowContext(t.Context(), `select text from report`).Scan(&text); err != nil || text != "in time" {
		t.Errorf("the report is %q, err = %v", text, err)
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
		m, err := lease.Open(t.Context(), store, lease.Options{Group: "billing", TTL: 2 * time.Second})
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
