package outbox_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/outbox"
)

func TestAStoreDeletesLoadsAndFollowsManyEntriesAtOnce(t *testing.T) {
	t.Run("SQLite", func(t *testing.T) { testStore(t, sqliteLedger(t)) })
	t.Run("PostgreSQL", func(t *testing.T) { testStore(t, postgresLedger(t)) })
}

func testStore[TX any](t *testing.T, l *ledger[TX]) {
	other := epoch.Partition{Group: "another group", Topic: orders.Topic, Number: orders.Number}
	o := epoch.Origin{Partition: orders, Log: "log", Source: "broker"}
	if err := l.sink.Seed(t.Context(), []epoch.Start{{Origin: o}}); err != nil {
		t.Fatal(err)
	}
	seen, err := l.sink.Fence(t.Context(), orders)
	if err != nil {
		t.Fatal(err)
	}
	f, err := l.sink.Claim(t.Context(), seen, epoch.NewClaim(epoch.Lease{Origin: o, Generation: 1, Owner: "test"}))
	if err != nil {
		t.Fatal(err)
	}
	in := func(do func(ctx context.Context, tx TX) error) {
		t.Helper()
		if err := l.sink.Commit(t.Context(), []epoch.Advance{{Partition: orders, Claim: f.Claim}}, epoch.TxOptions{}, do); err != nil {
			t.Fatal(err)
		}
	}
	// Three of each key, by turns, in this partition and in that of another group.
	keys := []string{"a", "A", "a ", "ä", "", `k"[,{}]\`, "a%_"}
	in(func(ctx context.Context, tx TX) error {
		for n := range 3 {
			for _, key := range keys {
				for _, p := range []epoch.Partition{other, orders} {
					e := outbox.Entry{Key: key, Scope: "s", IdempotencyKey: fmt.Sprint(n, key), Method: "POST", URL: "http://host/"}
					if err := l.store.Add(ctx, tx, epoch.Message{Partition: p, Offset: 7}, e); err != nil {
						return err
					}
				}
			}
		}
		return nil
	})
	var rows []outbox.Row
	var at outbox.Cursor
	in(func(ctx context.Context, tx TX) (err error) {
		rows, at, err = l.store.Scan(ctx, tx, orders, outbox.Cursor{}, 100)
		return err
	})
	if len(rows) != 3*len(keys) {
		t.Fatalf("%d entries, want %d", len(rows), 3*len(keys))
	}
	for _, r := range rows {
		if r.Offset != 7 {
			t.Errorf("entry %d was added for the message at offset %d, want 7", r.ID, r.Offset)
		}
	}
	row := func(n, key int) outbox.Row { return rows[n*len(keys)+key] }
	byID := func(a, b outbox.Row) int { return int(a.ID - b.ID) }
	want := func(what string, got []outbox.Row, want ...outbox.Row) {
		t.Helper()
		slices.SortFunc(got, byID)
		if !slices.EqualFunc(got, want, func(a, b outbox.Row) bool {
			return a.ID == b.ID && a.Offset == b.Offset && a.Key == b.Key && a.IdempotencyKey == b.IdempotencyKey
		}) {
			t.Errorf("%s: %+v, want %+v", what, got, want)
		}
	}
	in(func(ctx context.Context, tx TX) error {
		for limit, want := range map[int]int{100: 3 * len(keys), 5: 5} {
			n, oldest, err := l.store.Count(ctx, tx, orders, limit)
			if ago := time.Since(oldest); n != want || ago < 0 || ago > time.Minute || err != nil {
				t.Errorf("counted %d up to %d, the oldest %v old, %v; want %d of this minute", n, limit, ago, err, want)
			}
		}
		n, oldest, err := l.store.Count(ctx, tx, epoch.Partition{Group: "nobody's"}, 100)
		if n != 0 || !oldest.IsZero() {
			t.Errorf("counted %d, the oldest of %v, where there are none", n, oldest)
		}
		return err
	})
	first, second, third := rows[:len(keys)], rows[len(keys):2*len(keys)], rows[2*len(keys):]
	in(func(ctx context.Context, tx TX) error {
		var after []outbox.Place
		for _, r := range first {
			after = append(after, outbox.Place{Key: r.Key, ID: r.ID})
		}
		got, err := l.store.Next(ctx, tx, orders, at, after)
		want("behind the first of each key", got, second...)
		if err != nil {
			return err
		}
		gone := []int64{row(1, 0).ID, row(1, 3).ID, rows[len(rows)-1].ID + 1000}
		ids, err := l.store.Delete(ctx, tx, orders, gone)
		slices.Sort(ids)
		if !slices.Equal(ids, gone[:2]) {
			t.Errorf("deleted %d, want %d", ids, gone[:2])
		}
		if err != nil {
			return err
		}
		got, err = l.store.Next(ctx, tx, orders, at, after)
		want("behind the first of each key, two second ones gone", got, slices.SortedFunc(slices.Values(append(slices.DeleteFunc(slices.Clone(second),
			func(r outbox.Row) bool { return slices.Contains(gone, r.ID) }), third[0], third[3])), byID)...)
		if err != nil {
			return err
		}
		got, err = l.store.Load(ctx, tx, orders, []int64{third[2].ID, gone[0], first[1].ID})
		want("loaded again", got, first[1], third[2])
		if err != nil {
			return err
		}
		got, err = l.store.Next(ctx, tx, orders, at, []outbox.Place{{Key: third[1].Key, ID: third[1].ID}, {Key: "unknown", ID: 0}})
		want("behind the last", got)
		return err
	})
	in(func(ctx context.Context, tx TX) error { // those of the other partition are not ours
		ids, err := l.store.Delete(ctx, tx, other, []int64{rows[0].ID})
		if len(ids) != 0 {
			t.Errorf("deleted %d of another partition", ids)
		}
		if err != nil {
			return err
		}
		left, _, err := l.store.Scan(ctx, tx, other, outbox.Cursor{}, 100)
		if len(left) != 3*len(keys) {
			t.Errorf("%d entries of the other partition, want %d", len(left), 3*len(keys))
		}
		return err
	})
}
