package castest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/epochfence/epochfence/cas"
)

// keysOfEveryKind are keys that a store might confuse, change or refuse.
func keysOfEveryKind() []string {
	return []string{
		"a", "A", "a ", " a", " ", "  ", "a b", "\t", "a\n", "\x00", "a\x00", "a\x00b", "\x7f", "\xff", "\xff\xfe", "a\xffb",
		"/", "//", "a/", "/a", "a/b", "a//b", "./a", "../a", "a/./b", "a/../b", ".", "..", "...", "a.", ".a", "a.b", "a..b",
		"*", ">", "a*", "a.>", "a.*.b", "?", "%", "%2F", "a%2Fb", "=", "=2F", "a=2Fb", "[a]", "{a}", "{a}b", "a{b}", "\\", "a\\b", "'", `"`, "`", "$", "$a", "#", "#a", "&", "a&b=c", "+", "a+b", ":", "a:b", ";", "@", "~", "^", "|", "<", "_", "__", "-", "--",
		"é", "e\u0301", "ß", "ẞ", "日本", "\u202e", "\ufeff", "😀", "NULL", "nil", "true", "0", "00", "-1", "1e3",
		"CON", "aux.txt", "a\r\nb", "zookeeper", "__name__", strings.Repeat("k", 200), strings.Repeat("k/", 100), strings.Repeat("\x01", 200),
	}
}

func keys(w *world) {
	c, other := w.client(), w.client()
	facts := c.facts()
	all := append(keysOfEveryKind(), strings.Repeat("1", limit(facts.MaxKey, 64<<10)), strings.Repeat("\xff", limit(facts.MaxKey, 64<<10)))
	items := map[string]cas.Item{}
	for _, key := range all {
		items[key] = c.creates(key, "value of "+key, "")
	}
	for _, key := range all {
		other.is(items[key])
	}
	w.eventually(func() string { return difference(other.lists(""), all) })
	for _, key := range all[:10] {
		c.deletes(items[key])
	}
	w.eventually(func() string { return difference(other.lists(""), all[10:]) })
	for _, key := range all[10:] {
		other.is(items[key])
	}
}

func limit(bytes, most int) int {
	if bytes == 0 {
		return most
	}
	return min(bytes, most)
}

// difference says what distinguishes the keys of items from want, or "".
func difference(items map[string]cas.Item, want []string) string {
	var more []string
	for key := range items {
		if !slices.Contains(want, key) {
			more = append(more, key)
		}
	}
	var missing []string
	for _, key := range want {
		if _, has := items[key]; !has {
			missing = append(missing, key)
		}
	}
	if more == nil && missing == nil {
		return ""
	}
	slices.Sort(more)
	return fmt.Sprintf("the list has %q too many, and lacks %q", more, missing)
}

// eventually waits until a lagging store has nothing to say.
func (w *world) eventually(says func() string) {
	w.Helper()
	for {
		said := says()
		if said == "" {
			return
		}
		if w.pause() != nil {
			w.Fatal(said)
		}
	}
}

func prefixes(w *world) {
	c := w.client()
	all := []string{"a", "a/", "a/b", "a/b/c", "a/bc", "a//b", "ab", "b", "A/b", "a b", "a\xff", "a\xff\xff", "a*", "a.b", "a%", "a_", "é", "e"}
	for _, key := range all {
		c.creates(key, "x", "")
	}
	for _, prefix := range append(all, "", "a/b/", "zzz", "\xff", "\xc3", "a*b", "a_b", "a%b") {
		var want []string
		for _, key := range all {
			if strings.HasPrefix(key, prefix) {
				want = append(want, key)
			}
		}
		w.eventually(func() string {
			if d := difference(c.lists(prefix), want); d != "" {
				return fmt.Sprintf("prefix %q: %s", prefix, d)
			}
			return ""
		})
	}
}

func thousand(w *world) {
	const count = 1000
	keys := make([]string, count)
	for i := range keys {
		keys[i] = fmt.Sprintf("orders/%d", i)
	}
	writers := make([]client, 8)
	for i := range writers {
		writers[i] = w.client()
	}
	w.atOnce(writers, func(n int, c client) {
		for i := n; i < count; i += len(writers) {
			if _, err := c.Swap(w.ctx, cas.Item{Key: keys[i]}, []byte("value of "+keys[i]), []byte("note of "+keys[i])); err != nil {
				w.Errorf("swap: %v", err)
				return
			}
		}
	})
	c := writers[0]
	if _, err := c.Swap(w.ctx, cas.Item{Key: "order"}, nil, nil); err != nil {
		w.Fatal(err)
	}
	var items map[string]cas.Item
	w.eventually(func() string {
		items = c.lists("orders/")
		return difference(items, keys)
	})
	facts := c.facts()
	for i, key := range keys {
		item := items[key]
		switch value, note := string(item.Value), string(item.Note); {
		case facts.ListsWhole && (value != "value of "+key || note != "note of "+key):
			w.Fatalf("a list that is whole has\n%s", show(item))
		case !facts.ListsWhole && (value != "" || note != ""):
			w.Fatalf("a list that is not whole has\n%s", show(item))
		case i%100 == 0:
			if facts.ListsWhole {
				c.is(item)
			}
			_, err := c.Swap(w.ctx, item, []byte("again"), nil)
			w.Wantf(err == nil, "an item as listed: %v", err)
		}
	}
}

// swapsWhileItLists writes and deletes items within a list of them.
func swapsWhileItLists(w *world) {
	c := w.client()
	for i := range 300 {
		c.creates(fmt.Sprint("orders/", i), "x", "")
	}
	ctx, cancel := context.WithTimeout(w.ctx, 6*soon)
	defer cancel()
	large := strings.Repeat("v", limit(c.facts().MaxValue, 256<<10))
	listed := map[string]bool{}
	for item, err := range c.List(ctx, "orders/") {
		w.NoError(err)
		w.Mustf(!listed[item.Key], "the list has %q again, once it was written", item.Key)
		listed[item.Key] = true
		if item, err = c.Swap(ctx, item, []byte("y"), nil); err != nil {
			w.Fatalf("within a list: %v", err)
		}
		if strings.HasSuffix(item.Key, "00") {
			_, err = c.Swap(ctx, item, []byte(large), nil)
		} else if strings.HasSuffix(item.Key, "50") {
			err = c.Delete(ctx, item)
		}
		w.NoErrorf(err, "within a list")
	}
	w.Wantf(len(listed) == 300, "the list has %d items of 300", len(listed))
}

// replacedWhileItLists lists items while each is replaced as fast as the store can.
func replacedWhileItLists(w *world) {
	const items = 20
	c := w.client()
	all := make([]client, clients)
	for i := range all {
		all[i] = w.client()
	}
	ctx, stop := context.WithCancel(w.ctx)
	var written [items]cas.Item
	for i := range items {
		written[i] = c.creates(fmt.Sprint("orders/", i), "x", "")
	}
	w.eventually(func() string { return unless(len(c.lists("orders/")) == items, "a list has not all items") })
	var writers sync.WaitGroup
	for n, writer := range all {
		writers.Go(func() {
			for i := n; ctx.Err() == nil; i = (i + len(all)) % items {
				item, err := writer.Swap(ctx, written[i], []byte("y"), nil)
				if err != nil {
					w.Wantf(ctx.Err() != nil, "during a list: %v", err)
					return
				}
				written[i] = item
			}
		})
	}
	for round := range cmp.Or(w.rig.Races, races) {
		if listed := c.lists("orders/"); len(listed) != items {
			w.Errorf("list %d has %d items of %d, of which none was deleted", round, len(listed), items)
			break
		}
	}
	stop()
	writers.Wait()
}

func leavesEarly(w *world) {
	c := w.client()
	for i := range 20 {
		c.creates(fmt.Sprint("orders/", i), "x", "")
	}
	for range 100 {
		for item, err := range c.List(w.ctx, "orders/") {
			w.NoError(err)
			w.Mustf(strings.HasPrefix(item.Key, "orders/"), "the list has %q", item.Key)
			break
		}
	}
	c.creates("orders/20", "x", "")
}

func impossibleKeys(w *world) {
	c := w.client()
	facts := c.facts()
	impossible := []string{""}
	if facts.MaxKey > 0 {
		impossible = append(impossible, strings.Repeat("k", facts.MaxKey+1))
	}
	for _, key := range impossible {
		_, got := c.Get(w.ctx, key)
		_, swapped := c.Swap(w.ctx, cas.Item{Key: key}, nil, nil)
		for what, err := range map[string]error{"get": got, "swap": swapped, "delete": c.Delete(w.ctx, cas.Item{Key: key, Live: true, Version: "1"})} {
			w.Wantf(errors.Is(err, cas.ErrKey), "%s of a key of %d bytes: err = %v, want %q", what, len(key), err, cas.ErrKey)
		}
	}
	items := c.lists("")
	w.Wantf(len(items) == 0, "%d items were written", len(items))
}

func limits(w *world) {
	c := w.client()
	facts := c.facts()
	value, note := strings.Repeat("v", facts.MaxValue), strings.Repeat("n", facts.MaxNote)
	item := c.creates("orders", value, note)
	for _, over := range [][2]string{{value + "v", ""}, {"", note + "n"}} {
		if _, err := c.Swap(w.ctx, item, []byte(over[0]), []byte(over[1])); !errors.Is(err, cas.ErrTooLarge) {
			w.Errorf("value of %d bytes and note of %d: err = %v, want %q", len(over[0]), len(over[1]), err, cas.ErrTooLarge)
		}
	}
	c.is(item)
}
