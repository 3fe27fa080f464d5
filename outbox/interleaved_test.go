package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/outbox"
	"github.com/epochfence/epochfence/sinks/sqlsink"
)

// entry is one of the tests of stores: its body is its idempotency key.
func entry(key, body string) outbox.Entry {
	return outbox.Entry{Key: key, Scope: "s", IdempotencyKey: body, Method: "POST", URL: "http://host/"}
}

// TestWhatCommitsLateUnderALowerIDIsRead: transactions of one partition run beside each
// other, so that the first one to add an entry may commit last.
func TestWhatCommitsLateUnderALowerIDIsRead(t *testing.T) {
	t.Run("SQLite", func(t *testing.T) { // where there is none such
		l := sqliteLedger(t)
		f := claimed(t, l)
		hold := epoch.Hold{Partition: orders, Claim: f.Claim}
		err := epoch.CommitHeld(t.Context(), l.Sink, hold, epoch.TxOptions{}, func(ctx context.Context, tx *sqlsink.Tx) error {
			if err := l.Store.Add(ctx, tx, epoch.Message{Partition: orders, Offset: 7}, entry("", "first")); err != nil {
				return err
			}
			short, cancel := context.WithTimeout(ctx, 2*time.Second)
			defer cancel()
			err := epoch.CommitHeld(short, l.Sink, hold, epoch.TxOptions{}, func(ctx context.Context, tx *sqlsink.Tx) error {
				return l.Store.Add(ctx, tx, epoch.Message{Partition: orders, Offset: 7}, entry("", "second"))
			})
			if !errors.Is(err, epoch.ErrTransient) {
				t.Errorf("an entry was added beside a transaction that has added one: %v", err)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	})
	t.Run("PostgreSQL", func(t *testing.T) { interleave(t, postgresLedger(t)) })
}

// claimed is a fence that has been claimed.
func claimed[TX any](t *testing.T, l *ledger[TX]) epoch.Fence {
	t.Helper()
	o := epoch.Origin{Partition: orders, Log: "log", Source: "broker"}
	if err := l.Sink.Seed(t.Context(), []epoch.Start{{Origin: o}}); err != nil {
		t.Fatal(err)
	}
	seen, err := epoch.FenceOf(t.Context(), l.Sink, orders)
	if err != nil {
		t.Fatal(err)
	}
	f, err := l.Sink.Claim(t.Context(), seen, epoch.NewClaim(epoch.Lease{Origin: o, Generation: 1, Owner: "test"}))
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func interleave[TX any](t *testing.T, l *ledger[TX]) {
	f := claimed(t, l)
	hold := epoch.Hold{Partition: orders, Claim: f.Claim}
	in := func(do func(ctx context.Context, tx TX) error) {
		t.Helper()
		if err := epoch.CommitHeld(t.Context(), l.Sink, hold, epoch.TxOptions{}, do); err != nil {
			t.Fatal(err)
		}
	}
	add := func(keysAndBodies ...string) {
		t.Helper()
		in(func(ctx context.Context, tx TX) error {
			for i := 0; i < len(keysAndBodies); i += 2 {
				if err := l.Store.Add(ctx, tx, epoch.Message{Partition: orders, Offset: 7}, entry(keysAndBodies[i], keysAndBodies[i+1])); err != nil {
					return err
				}
			}
			return nil
		})
	}
	// beside adds an entry, has others do something, and commits then.
	beside := func(key, body string, others func()) {
		t.Helper()
		err := l.Sink.Commit(t.Context(), []epoch.Advance{{Partition: orders, Claim: f.Claim}}, epoch.TxOptions{}, func(ctx context.Context, tx TX) error {
			if err := l.Store.Add(ctx, tx, epoch.Message{Partition: orders, Offset: 7}, entry(key, body)); err != nil {
				return err
			}
			others()
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	var at outbox.Cursor
	ids := map[string]int64{}
	scan := func(limit int, want ...string) {
		t.Helper()
		in(func(ctx context.Context, tx TX) error {
			rows, then, err := l.Store.Scan(ctx, tx, orders, at, limit)
			if err != nil {
				return err
			}
			var got []string
			for _, r := range rows {
				got = append(got, r.IdempotencyKey)
				ids[r.IdempotencyKey] = r.ID
			}
			if !slices.Equal(got, want) {
				t.Errorf("from %+v: read %q, want %q", at, got, want)
			}
			at = then
			return nil
		})
	}
	next := func(key string, after int64, want ...string) {
		t.Helper()
		in(func(ctx context.Context, tx TX) error {
			rows, err := l.Store.Next(ctx, tx, orders, at, []outbox.Place{{Key: key, ID: after}})
			var got []string
			for _, r := range rows {
				got = append(got, r.IdempotencyKey)
			}
			if !slices.Equal(got, want) {
				t.Errorf("after entry %d of key %q: %q, want %q", after, key, got, want)
			}
			return err
		})
	}

	scan(10) // nothing: a cursor all the same
	add("", "a")
	beside("K", "late", func() {
		add("K", "b", "", "c")
		scan(10, "a", "b", "c")
		scan(10) // it has not committed yet
	})
	// What was committed since does not come before what has not been read.
	beside("K", "another", func() {})
	next("K", ids["b"])
	scan(10, "late", "b", "c", "another") // from the one that was late on
	next("K", ids["late"]-1, "late")
	next("K", ids["b"], "another")
	scan(10)

	// Several, of transactions that began before the last look and after it, in pages.
	beside("", "1", func() {
		beside2(t, l, hold, "2", func() {
			add("", "3")
			scan(1, "3")
			add("", "4")
		})
		scan(1, "2") // and those after it again
		scan(10, "3", "4")
	})
	scan(2, "1", "2")
	scan(10, "3", "4")
	scan(10)

	// One that began after the last of those that are seen: its transaction is higher, and
	// its entry lower.
	began, goOn, ended := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- epoch.CommitHeld(t.Context(), l.Sink, hold, epoch.TxOptions{}, func(ctx context.Context, tx TX) error {
			if _, _, err := l.Store.Scan(ctx, tx, orders, at, 1); err != nil { // it has begun
				return err
			}
			close(began)
			<-goOn
			return l.Store.Add(ctx, tx, epoch.Message{Partition: orders, Offset: 7}, entry("", "higher"))
		})
	}()
	<-began
	beside("", "lower", func() {
		close(goOn)
		if err := <-ended; err != nil {
			t.Error(err)
		}
		scan(10, "higher")
	})
	scan(10, "lower", "higher")
	scan(10)

	// More than are looked at in one step.
	const many = 600
	beside("", "long ago", func() {
		in(func(ctx context.Context, tx TX) error {
			for n := range many {
				if err := l.Store.Add(ctx, tx, epoch.Message{Partition: orders, Offset: 7}, entry("", fmt.Sprint("many ", n))); err != nil {
					return err
				}
			}
			return nil
		})
		in(func(ctx context.Context, tx TX) error {
			_, then, err := l.Store.Scan(ctx, tx, orders, at, many+10)
			at = then
			return err
		})
	})
	scan(1, "long ago")
}

// beside2 is a held claim in whose transaction an entry is added before the others do
// something.
func beside2[TX any](t *testing.T, l *ledger[TX], hold epoch.Hold, body string, others func()) {
	t.Helper()
	err := epoch.CommitHeld(t.Context(), l.Sink, hold, epoch.TxOptions{}, func(ctx context.Context, tx TX) error {
		if err := l.Store.Add(ctx, tx, epoch.Message{Partition: orders, Offset: 7}, entry("", body)); err != nil {
			return err
		}
		others()
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestAnEntryThatCommitsLateIsSent by the relay that has read later ones already: of
// another key, of the same one while that one's first is on its way, waits or is done.
func TestAnEntryThatCommitsLateIsSent(t *testing.T) {
	for name, key := range map[string]string{"its own key": "late", "no key": "-", "the key of one that was sent": "k"} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, fast, func(*http.Request, string) int { return http.StatusOK })
			late := r.adding(key + " first")
			r.add("k second")
			run := r.relay(1)
			r.awaitEmpty()
			late.commit()
			run.wake()
			r.await("the late one", func() bool { return len(r.received()) == 2 })
			r.awaitEmpty()
			r.wantReceived("second", "first")
		})
	}
}

// TestEntriesOfAKeyKeepTheirOrderBehindOneThatIsLate: while the first of the key is on
// its way, a lower one commits, and then one that follows that.
func TestEntriesOfAKeyKeepTheirOrderBehindOneThatIsLate(t *testing.T) {
	for _, read := range []bool{false, true} {
		t.Run(fmt.Sprintf("read before the first is done %v", read), func(t *testing.T) {
			inside, goOn := make(chan struct{}), make(chan struct{})
			r := newRig(t, fast, func(_ *http.Request, body string) int {
				if body == "first" {
					close(inside)
					<-goOn
				}
				return http.StatusOK
			})
			late := r.adding("k second")
			r.add("k first")
			run := r.relay(1)
			<-inside
			late.commit()
			r.add("k third")
			if read {
				before := r.transactions()
				run.wake()
				r.await("a look", func() bool { return r.transactions() > before })
			}
			close(goOn)
			run.wake()
			r.await("all", func() bool { return len(r.received()) == 3 })
			r.awaitEmpty()
			r.wantReceived("first", "second", "third")
		})
	}
}
