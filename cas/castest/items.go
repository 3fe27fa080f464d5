package castest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/epochfence/epochfence/cas"
)

func absent(w *world) {
	c := w.client()
	item, err := c.Get(w.ctx, "orders")
	w.NoError(err)
	w.same(item, cas.Item{Key: "orders"})
	items := c.lists("")
	w.Wantf(len(items) == 0, "a new store has %d items", len(items))
	if err := c.Delete(w.ctx, cas.Item{Key: "orders", Version: "7"}); err == nil {
		w.Error("an item that nobody has written was deleted")
	}
}

// bytesOfEveryKind are values and notes. A store must not change them.
func bytesOfEveryKind() map[string]string {
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	return map[string]string{
		"nothing": "", "text": "hello", "every byte": string(all), "NUL": "\x00", "no UTF-8": "\xff\xfe\xc0",
		"JSON": `{"value":"x"}`, "ends in spaces": "x \t\r\n", "32 KB": strings.Repeat("0123456789abcdef", 2048),
	}
}

func writtenAndRead(w *world) {
	c, other := w.client(), w.client()
	seen := cas.Item{Key: "orders"}
	for name, value := range bytesOfEveryKind() {
		for note, content := range bytesOfEveryKind() {
			if len(value)+len(content) > 40000 {
				continue
			}
			item, err := c.Swap(w.ctx, seen, []byte(value), []byte(content))
			w.NoErrorf(err, "value %s, note %s", name, note)
			other.is(cas.Item{Key: "orders", Live: true, Value: []byte(value), Note: []byte(content), Version: item.Version, Number: item.Number})
			seen = item
		}
	}
}

// ofOneWrite reads while an item is written: value and note say the same, and a version has one
// content.
func ofOneWrite(w *world) {
	w.readsWhileWritten(func(c client) (cas.Item, error) { return c.Get(w.ctx, "orders") })
}

func (w *world) readsWhileWritten(get func(c client) (cas.Item, error)) {
	const writes, reads, readers = 150, 300, 3
	writer := w.client()
	item := writer.creates("orders", "0", "0")
	ctx, cancel := context.WithCancel(w.ctx)
	var mu sync.Mutex
	content, done := map[string]string{}, 0
	var reading sync.WaitGroup
	for range readers {
		c := w.client()
		reading.Go(func() {
			for ctx.Err() == nil {
				got, err := get(c)
				mu.Lock()
				was, known := content[got.Version]
				content[got.Version] = string(got.Value)
				done++
				mu.Unlock()
				if err != nil || !bytes.Equal(got.Value, got.Note) || known && was != string(got.Value) {
					w.Errorf("while the item was written, this was read (%v):\n%s", err, show(got))
					return
				}
			}
		})
	}
	enough := func() bool {
		mu.Lock()
		defer mu.Unlock()
		return done >= reads
	}
	for n := 0; n < writes || !enough() && !w.Failed(); n++ {
		runtime.Gosched() // also in memory
		next, err := writer.Swap(w.ctx, item, fmt.Append(nil, n), fmt.Append(nil, n))
		if err != nil {
			w.Errorf("swap: %v", err)
			break
		}
		item = next
	}
	cancel()
	reading.Wait()
}

// buffers changes the slices that it passed to Swap, and those that it got back.
func buffers(w *world) {
	c := w.client()
	value, note := []byte("value"), []byte("note")
	item, err := c.Swap(w.ctx, cas.Item{Key: "orders"}, value, note)
	w.NoError(err)
	copy(value, "12345")
	copy(note, "1234")
	if string(item.Value) != "value" || string(item.Note) != "note" {
		w.Errorf("the item has the caller's slices:\n%s", show(item))
	}
	copy(item.Value, "12345")
	got := c.reads("orders", func(item cas.Item) bool { return item.Live })
	copy(got.Value, "12345")
	if again := c.reads("orders", func(item cas.Item) bool { return item.Live }); string(again.Value) != "value" || string(again.Note) != "note" {
		w.Errorf("the store has the caller's slices:\n%s", show(again))
	}
}

func native(w *world) {
	c := w.client()
	seen := cas.Item{Key: "orders/4711"}
	for _, value := range []string{`{"state":"paid"}`, "", "\x00\xff"} {
		seen = c.writes(seen, value, "the note")
		got := string(w.rig.Native(w, seen.Key))
		w.Wantf(got == value, "another client reads %q, want %q", got, value)
	}
}

func changed(w *world) {
	a, b := w.client(), w.client()
	first := a.creates("orders", "1", "one")
	b.refused(cas.Item{Key: "orders"}, "absence, of an item that is there")
	second := b.writes(first, "2", "two")
	a.refused(first, "the item before the last write")
	third := a.writes(second, "3", "three")
	b.refused(first, "the item of two writes ago")
	b.refused(second, "the item before the last write")
	b.is(third)
	other := a.creates("payments", "1", "one")
	b.refused(cas.Item{Key: "payments", Live: true, Version: third.Version, Number: third.Number, Value: third.Value, Note: third.Note}, "another item")
	b.is(other)
}

func sameContent(w *world) {
	a, b := w.client(), w.client()
	x := a.creates("orders", "x", "note")
	y := b.writes(x, "y", "note")
	again := b.writes(y, "x", "note")
	a.refused(x, "an item with the same content")
	same := b.writes(again, "x", "note")
	a.refused(again, "an item with the same content")
	a.refused(x, "an item with the same content")
	b.is(same)
}

func deletedAndWritten(w *world) {
	a, b := w.client(), w.client()
	x := a.creates("orders", "x", "note")
	gone := b.deletes(x)
	a.refused(x, "an item that was deleted")
	if len(gone.Value) > 0 || len(gone.Note) > 0 {
		w.Errorf("the deleted item has content:\n%s", show(gone))
	}
	again := b.writes(gone, "x", "note")
	a.refused(x, "the item before it was deleted and written again")
	a.refused(cas.Item{Key: "orders"}, "absence, of an item that is there")
	w.Wantf(again.Version != x.Version, "version %q names two writes", x.Version)
	for range 3 {
		again = b.writes(b.deletes(again), "x", "note")
		a.refused(x, "the item before it was deleted and written again")
	}
	b.is(again)
}

// lostWrites is how many writes of an item are lost, so that one of them has the number of a write
// that follows, also if a server writes something of its own meanwhile.
const lostWrites = 200

// losesWrites writes what is lost, and then as many times as may repeat its numbers.
func (w *world) losesWrites(prepare func(t testing.TB) (lose func())) {
	w.Helper()
	a := w.client()
	first := a.creates("orders", "1", "")
	lose := prepare(w)
	lost := []cas.Item{a.writes(first, "lost", "")}
	for n := range lostWrites {
		item, err := a.Swap(w.ctx, lost[n], []byte("lost"), nil)
		w.NoError(err)
		lost = append(lost, item)
	}
	last := lost[lostWrites]
	lostToo := a.creates("payments", "lost", "")
	lose()
	b := w.client()
	b.reads("orders", func(item cas.Item) bool { return string(item.Value) == "1" })
	for n := 0; n < 5 || first.Number < last.Number && n < 2*lostWrites; n++ {
		first = b.writes(b.reads("orders", func(cas.Item) bool { return true }), fmt.Sprint("again ", n), "")
		for i, item := range lost {
			if n < 5 && i == 0 || item.Number == first.Number && item.Number > 0 {
				b.refused(item, "the item of a write that was lost")
			}
		}
	}
	again := b.creates("payments", "again", "")
	b.refused(last, "the item of a write that was lost")
	b.refused(lostToo, "the item of a write that was lost")
	b.is(first)
	b.is(again)
}

func emptied(w *world) {
	a, b := w.client(), w.client()
	item := a.creates("orders", "1", "")
	before := a.facts()
	other := b.facts()
	w.Mustf(other == before && before.Source != "", "two clients have the facts\n%+v\n%+v", before, other)
	w.rig.Empty(w)
	after := w.client().facts()
	w.Wantf(after.Source != before.Source, "the source is %q, before and after", before.Source)
	c := w.client()
	items := c.lists("")
	w.Wantf(len(items) == 0, "an emptied store has %d items", len(items))
	if w.rig.Strands {
		a, b = w.client(), w.client()
	}
	a.answers()
	if after := a.facts(); after.Source == before.Source {
		w.Errorf("a store that was open says that the source is %q, before and after", before.Source)
	}
	a.refused(item, "an item that is lost")
	again := c.creates("orders", "1", "")
	if !before.Repeats {
		a.refused(item, "an item that is lost")
	}
	b.is(again)
}

func growingNumbers(w *world) {
	c := w.client()
	other := c.creates("payments", "x", "")
	item := c.creates("orders", "x", "")
	last := item.Number
	for range 5 {
		item = c.writes(c.deletes(item), "x", "")
		other = c.writes(other, "x", "")
		w.Mustf(item.Number > last, "number %d follows %d, over a deletion", item.Number, last)
		last = item.Number
	}
}

func named(w *world) {
	c := w.client()
	item := c.creates("orders/4711", "x", "")
	c.writes(item, "y", "")
	ctx, cancel := cancelled(w)
	defer cancel()
	_, swapped := c.Swap(w.ctx, item, nil, nil)
	_, got := c.Get(ctx, item.Key)
	_, listed := func() (n int, err error) {
		for _, err = range c.List(ctx, "orders/4711") {
			n++
		}
		return n, err
	}()
	for what, err := range map[string]error{"swap": swapped, "delete": c.Delete(w.ctx, item), "get": got, "list": listed} {
		if err == nil {
			w.Errorf("%s did not fail", what)
			continue
		}
		text := err.Error()
		w.Wantf(strings.Contains(text, `"orders/4711"`) && strings.Contains(text, what), "an error does not say %s and \"orders/4711\": %v", what, err)
	}
	w.Wantf(!errors.Is(got, cas.ErrConflict), "a read conflicts: %v", got)
}

func tellsTime(w *world) {
	clock := w.client().Store.(cas.Clock)
	const slack = 10 * time.Second // the server is on this machine
	begun := time.Now()
	now, err := clock.Now(w.ctx)
	w.Wantf(err == nil && !now.Before(begun.Add(-slack)) && !now.After(time.Now().Add(slack)), "the clock shows %v, %v, and it is %v", now, err, begun)
	ctx, cancel := cancelled(w)
	defer cancel()
	if _, err := clock.Now(ctx); !errors.Is(err, ctx.Err()) {
		w.Errorf("a context that has ended: %v", err)
	}
}
