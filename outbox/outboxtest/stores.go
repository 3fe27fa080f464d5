package outboxtest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/outbox"
)

// This file has the histories that call the store, as the relay would.

var orders = epoch.Partition{Group: "billing", Topic: "orders", Number: 3}

func entry(key, id string) outbox.Entry {
	return outbox.Entry{Key: key, Scope: "s", IdempotencyKey: id, Method: "POST", URL: "http://host/"}
}

func (w *world[TX]) wantRows(what string, got []outbox.Row, err error, want ...outbox.Row) {
	w.Helper()
	byID := func(a, b outbox.Row) int { return int(a.ID - b.ID) }
	slices.SortFunc(got, byID)
	slices.SortFunc(want, byID)
	same := func(a, b outbox.Row) bool {
		return a.ID == b.ID && a.Key == b.Key && a.IdempotencyKey == b.IdempotencyKey
	}
	if err != nil || !slices.EqualFunc(got, want, same) {
		w.Errorf("%s: %+v, %v; want %+v", what, got, err, want)
	}
}

func keeps[TX any](w *world[TX]) {
	keys := []string{"a", "A", "a ", "ä", "", `k"[,{}]\`, "a%_"}
	var three []outbox.Entry // of each key, by turns
	for n := range 3 {
		for _, key := range keys {
			three = append(three, entry(key, fmt.Sprint(n, key)))
		}
	}
	other := w.adds(epoch.Partition{Group: "another group", Topic: orders.Topic, Number: orders.Number}, three...)
	f := w.adds(orders, three...)
	var rows []outbox.Row
	var at outbox.Cursor
	w.must(w.held(w.Context(), f, func(ctx context.Context, tx TX) error {
		first, then, err := w.Store.Scan(ctx, tx, orders, outbox.Cursor{}, 5)
		if err != nil {
			return err
		}
		rows, at, err = w.Store.Scan(ctx, tx, orders, then, 100)
		rows = slices.Concat(first, rows)
		if len(first) != 5 || len(rows) != len(three) {
			return fmt.Errorf("scanned %d and %d entries, want 5 and all %d", len(first), len(rows)-len(first), len(three))
		}
		return err
	}))
	for i, r := range rows {
		if r.Key != three[i].Key || r.IdempotencyKey != three[i].IdempotencyKey || r.Offset != 7 {
			w.Errorf("entry %d is %+v", i, r)
		}
	}
	first, second, third := rows[:len(keys)], rows[len(keys):2*len(keys)], rows[2*len(keys):]
	w.must(w.held(w.Context(), f, func(ctx context.Context, tx TX) error {
		for limit, want := range map[int]int{100: len(three), 5: 5} {
			n, oldest, err := w.Store.Count(ctx, tx, orders, limit)
			if ago := time.Since(oldest); n != want || ago < -time.Second || ago > time.Minute || err != nil {
				w.Errorf("counted %d up to %d, the oldest %v old, %v; want %d of this minute", n, limit, ago, err, want)
			}
		}
		var after []outbox.Place
		for _, r := range first {
			after = append(after, outbox.Place{Key: r.Key, ID: r.ID})
		}
		got, err := w.Store.Next(ctx, tx, orders, at, after)
		w.wantRows("behind the first of each key", got, err, slices.Clone(second)...)
		gone := []int64{second[0].ID, second[3].ID}
		ids, err := w.Store.Delete(ctx, tx, orders, append(gone[:2:2], third[0].ID+1<<40))
		if slices.Sort(ids); err != nil || !slices.Equal(ids, gone) {
			w.Errorf("deleted %d, %v; want %d", ids, err, gone)
		}
		got, err = w.Store.Next(ctx, tx, orders, at, after)
		w.wantRows("behind the first of each key, two second ones gone", got, err, third[0], second[1], second[2], third[3], second[4], second[5], second[6])
		got, err = w.Store.Load(ctx, tx, orders, []int64{third[2].ID, gone[0], first[1].ID})
		w.wantRows("loaded again", got, err, first[1], third[2])
		got, err = w.Store.Next(ctx, tx, orders, at, []outbox.Place{{Key: third[1].Key, ID: third[1].ID}, {Key: "unknown", ID: 0}})
		w.wantRows("behind the last", got, err)
		return nil
	}))
	w.must(w.held(w.Context(), other, func(ctx context.Context, tx TX) error {
		n, _, err := w.Store.Count(ctx, tx, other.Partition, 100)
		if n != len(three) || err != nil {
			w.Errorf("%d entries of the other partition, %v; want %d", n, err, len(three))
		}
		_, err = w.Store.Delete(ctx, tx, other.Partition, []int64{rows[0].ID}) // of another partition
		return err
	}))
	w.must(w.held(w.Context(), f, func(ctx context.Context, tx TX) error {
		got, err := w.Store.Load(ctx, tx, orders, []int64{rows[0].ID})
		w.wantRows("after another partition has deleted it", got, err, rows[0])
		return nil
	}))
}

// late commits an entry after a transaction beside it has added another one, unless the store has
// that one wait.
func late[TX any](w *world[TX]) {
	f := w.adds(orders)
	add := func(id string) func(context.Context, TX) error {
		return func(ctx context.Context, tx TX) error {
			return w.Store.Add(ctx, tx, epoch.Message{Partition: orders}, entry("k", id))
		}
	}
	var at outbox.Cursor
	scan := func(from outbox.Cursor) (ids []string) {
		w.Helper()
		w.must(w.held(w.Context(), f, func(ctx context.Context, tx TX) error {
			rows, then, err := w.Store.Scan(ctx, tx, orders, from, 100)
			for _, r := range rows {
				ids = append(ids, r.IdempotencyKey)
			}
			at = then
			return err
		}))
		return ids
	}
	var waits error
	var read []string
	w.must(w.commits(f, func(ctx context.Context, tx TX) error {
		if err := add("late")(ctx, tx); err != nil {
			return err
		}
		short, cancel := context.WithTimeout(ctx, 3*time.Second)
		defer cancel()
		if waits = w.held(short, f, add("other")); waits == nil {
			read = scan(at)
		}
		return nil
	}))
	if waits != nil {
		w.Logf("who adds to a partition waits for who has added: %v", waits)
		if !errors.Is(waits, epoch.ErrTransient) {
			w.Error("this is no epoch.ErrTransient")
		}
		w.must(w.held(w.Context(), f, add("other")))
	}
	read = append(read, scan(at)...) // what has a higher ID than the late one is read again
	var first []outbox.Row
	w.must(w.held(w.Context(), f, func(ctx context.Context, tx TX) (err error) {
		first, err = w.Store.Next(ctx, tx, orders, at, []outbox.Place{{Key: "k"}})
		return err
	}))
	all := scan(outbox.Cursor{})
	if len(all) != 2 || len(read) < 2 || !slices.Equal(read[len(read)-2:], all) || len(first) != 1 || first[0].IdempotencyKey != all[0] {
		w.Errorf("read %q, of which the first is %+v; want the two of %q", read, first, all)
	}
}
