package castest

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/epochfence/epochfence/cas"
)

// foreign reads what clients of the store's own have written: as an item with the value that they
// wrote, or as an error that says what it is. Either way nobody's value is lost unseen.
func foreign(w *world) {
	c := w.client()
	own := c.creates("orders/own", "1", "one")
	for i, what := range slices.Sorted(maps.Keys(w.rig.Foreign)) {
		key := fmt.Sprintf("orders/%d", i)
		value := w.rig.Foreign[what](w, key)
		_, err := c.Swap(w.ctx, cas.Item{Key: key}, []byte("x"), nil)
		w.conflicts(err, "swap from absence over "+what)
		item, err := c.Get(w.ctx, key)
		switch {
		case errors.Is(err, cas.ErrForeign):
			w.Wantf(strings.Contains(err.Error(), strconv.Quote(key)), "%s: the error does not name the key: %v", what, err)
			w.conflicts(c.Delete(w.ctx, cas.Item{Key: key, Live: true, Version: own.Version, Number: own.Number}), "delete of "+what)
			if all, ok := c.Store.(cas.BatchGetter); ok {
				_, err := all.GetAll(w.ctx, []string{own.Key, key})
				w.Wantf(errors.Is(err, cas.ErrForeign), "%s, read together with an item: err = %v, want %q", what, err, cas.ErrForeign)
			}
		case err != nil:
			w.Errorf("%s: err = %v, want none, or %q", what, err, cas.ErrForeign)
		case !item.Live || string(item.Value) != string(value):
			w.Errorf("%s is read as\n%s\nand %q was written", what, show(item), value)
		default:
			c.writes(item, "ours", "")
			c.refused(item, what+" that was replaced")
		}
	}
	c.is(own)
	items := c.lists("orders/")
	w.Wantf(items[own.Key].Version == own.Version, "the list lacks %q beside what others have written: %v", own.Key, items)
}

// full writes to a store that has no room, deletes from it, and writes once there is room.
func full(w *world) {
	c := w.client()
	item, other := c.creates("orders", "1", "one"), c.creates("payments", "1", "one")
	room := w.rig.Full(w)
	for _, seen := range []cas.Item{item, {Key: "stock"}} {
		_, err := c.Swap(w.ctx, seen, []byte("2"), []byte("two"))
		w.Wantf(errors.Is(err, cas.ErrFull), "swap %q in a store that is full: err = %v, want %q", seen.Key, err, cas.ErrFull)
	}
	c.is(item)
	c.deletes(other)
	room()
	c.writes(item, "2", "two")
}
