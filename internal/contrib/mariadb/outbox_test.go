package mariadb_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/memsource"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/servers/mariatest"
	"github.com/epochfence/epochfence/operate"
	"github.com/epochfence/epochfence/outbox"
	"github.com/epochfence/epochfence/outbox/sqloutbox"
	"github.com/epochfence/epochfence/sinks/sqlsink"
)

func newOutbox(t *testing.T, dsn string) *sqloutbox.Store[*sqlsink.Tx] {
	t.Helper()
	store, err := sqloutbox.Open[*sqlsink.Tx](t.Context(), open(t, dsn), sqloutbox.MariaDB, sqloutbox.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return store
}

func entry(key, id string) outbox.Entry {
	return outbox.Entry{Key: key, Scope: "s", IdempotencyKey: id, Method: "POST", URL: "http://host/"}
}

func TestTheOutboxHasWhatWasAddedInTheOrderOfItsIDs(t *testing.T) {
	dsn := newDatabase(t, mariatest.Start(t))
	s, store := newSink(t, dsn, sqlsink.Options{}), newOutbox(t, dsn)
	seeded(t, s)
	f, err := claim(t.Context(), s, 1)
	if err != nil {
		t.Fatal(err)
	}
	p, other := orders.Partition, epoch.Partition{Group: "another", Topic: "orders"}
	in := func(do func(ctx context.Context, tx *sqlsink.Tx) error) {
		t.Helper()
		if err := s.CommitHeld(t.Context(), epoch.Hold{Partition: p, Claim: f.Claim}, epoch.TxOptions{}, do); err != nil {
			t.Fatal(err)
		}
	}
	keys := []string{"a", "A", "a ", "ä", "", `k"[,{}]\`, "a%_"}
	in(func(ctx context.Context, tx *sqlsink.Tx) error {
		for n := range 3 {
			for _, key := range keys {
				if err := errors.Join(store.Add(ctx, tx, epoch.Message{Partition: other, Offset: 7}, entry(key, fmt.Sprint(n, key))), store.Add(ctx, tx, epoch.Message{Partition: p, Offset: 7}, entry(key, fmt.Sprint(n, key)))); err != nil {
					return err
				}
			}
		}
		return nil
	})
	var rows []outbox.Row
	in(func(ctx context.Context, tx *sqlsink.Tx) error {
		first, at, err := store.Scan(ctx, tx, p, outbox.Cursor{}, 5)
		if err != nil {
			return err
		}
		rest, _, err := store.Scan(ctx, tx, p, at, 100)
		rows = slices.Concat(first, rest)
		n, oldest, errCount := store.Count(ctx, tx, p, 100)
		if ago := time.Since(oldest); len(first) != 5 || len(rows) != 3*len(keys) || n != len(rows) || ago < -time.Second || ago > time.Minute {
			t.Errorf("scanned %d and %d, counted %d, the oldest %v old", len(first), len(rest), n, ago)
		}
		return errors.Join(err, errCount)
	})
	in(func(ctx context.Context, tx *sqlsink.Tx) error {
		for i, r := range rows {
			if r.Key != keys[i%len(keys)] || r.IdempotencyKey != fmt.Sprint(i/len(keys), r.Key) {
				t.Errorf("entry %d is %+v", i, r)
			}
		}
		next, err := store.Next(ctx, tx, p, outbox.Cursor{}, []outbox.Place{{Key: "a ", ID: rows[2].ID}, {Key: "b", ID: 0}})
		if err != nil || len(next) != 1 || next[0].ID != rows[2+len(keys)].ID {
			t.Errorf("next: %+v, %v", next, err)
		}
		loaded, err := store.Load(ctx, tx, p, []int64{rows[3].ID, rows[3].ID + 1, 1 << 40})
		if err != nil || len(loaded) != 1 || loaded[0].Key != "ä" {
			t.Errorf("loaded: %+v, %v", loaded, err)
		}
		gone, err := store.Delete(ctx, tx, p, []int64{rows[0].ID, rows[0].ID - 1})
		if err != nil || !slices.Equal(gone, []int64{rows[0].ID}) {
			t.Errorf("deleted: %v, %v", gone, err)
		}
		return nil
	})
}

// Otherwise a relay would have read past an entry that is committed late.
func TestWhoAddsToAPartitionWaitsForWhoHasAdded(t *testing.T) {
	dsn := newDatabase(t, mariatest.Start(t))
	s, store := newSink(t, dsn, sqlsink.Options{}), newOutbox(t, dsn)
	seeded(t, s)
	f, err := claim(t.Context(), s, 1)
	if err != nil {
		t.Fatal(err)
	}
	hold := epoch.Hold{Partition: orders.Partition, Claim: f.Claim}
	err = s.CommitHeld(t.Context(), hold, epoch.TxOptions{}, func(ctx context.Context, tx *sqlsink.Tx) error {
		if err := store.Add(ctx, tx, epoch.Message{Partition: orders.Partition, Offset: 7}, entry("", "first")); err != nil {
			return err
		}
		short, cancel := context.WithTimeout(ctx, 3*time.Second)
		defer cancel()
		err := s.CommitHeld(short, hold, epoch.TxOptions{}, func(ctx context.Context, tx *sqlsink.Tx) error {
			return store.Add(ctx, tx, epoch.Message{Partition: orders.Partition, Offset: 7}, entry("", "second"))
		})
		if !errors.Is(err, epoch.ErrTransient) {
			t.Errorf("an entry was added beside a transaction that has added one: %v", err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// A relay delivers what handlers add, and an operator has one tried at once that would wait for a day.
func TestARelayDeliversWhatHandlersAdd(t *testing.T) {
	dsn := newDatabase(t, mariatest.Start(t))
	s, op := newSink(t, dsn, sqlsink.Options{}), newOperator(t, dsn)
	const messages = 20
	var fixed atomic.Bool
	came, refused := make(chan string, 10*messages), make(chan struct{}, 10)
	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if string(body) == "7" && !fixed.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		came <- string(body)
	}))
	defer receiver.Close()
	box, err := outbox.New(newOutbox(t, dsn), outbox.Options[*sqlsink.Tx]{
		RetryMin: 24 * time.Hour, RetryMax: 24 * time.Hour, Logger: slog.New(slog.DiscardHandler),
		Observe: func(e outbox.Event) {
			if e.Kind == outbox.Retrying {
				refused <- struct{}{}
			}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	log := memsource.New("orders", 2)
	for i := range messages {
		log.Append(int32(i%2), fmt.Sprint(i))
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() {
		done <- consumer.Run(ctx, log.Member("a"), s, consumer.Each(func(ctx context.Context, tx *sqlsink.Tx, m consumer.Message, _ epoch.Epoch) error {
			return box.Add(ctx, tx, m, outbox.Entry{Scope: "s", URL: receiver.URL, Body: m.Value})
		}).Background(box.Relay), consumer.Options{Logger: slog.New(slog.DiscardHandler)})
	}()
	<-refused
	var got []string
	for range messages - 1 {
		got = append(got, <-came)
	}
	waiting, err := op.OutboxEntries(t.Context(), operate.OutboxQuery{})
	for err == nil && len(waiting) > 1 { // what was delivered is deleted soon
		waiting, err = op.OutboxEntries(t.Context(), operate.OutboxQuery{})
	}
	if err != nil || len(waiting) != 1 || waiting[0].Scope != "s" {
		t.Fatalf("waiting: %+v, %v", waiting, err)
	}
	fixed.Store(true)
	if err := op.DoOutbox(t.Context(), operate.OutboxAct{Kind: operate.OutboxRetry, Seen: waiting[0], By: "anna", Reason: "fixed"}); err != nil {
		t.Fatal(err)
	}
	got = append(got, <-came)
	cancel()
	if err := <-done; err != nil && !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	slices.Sort(got)
	if got = slices.Compact(got); len(got) != messages {
		t.Errorf("%d different entries came: %q", len(got), got)
	}
}
