package leasetest

import (
	"fmt"
	"time"

	"github.com/epochfence/epochfence/cas"
)

// keys are the keys of the group as they are now.
func (w *world) keys(part string) []cas.Item {
	w.Helper()
	s := w.store()
	var items []cas.Item
	for item, err := range s.List(w.ctx, w.group+"/lease/"+part) {
		if err == nil {
			item, err = s.Get(w.ctx, item.Key)
		}
		w.NoError(err)
		items = append(items, item)
	}
	return items
}

// deletes removes the keys, whoever replaces them meanwhile.
func (w *world) deletes(part string) {
	w.Helper()
	s := w.store()
	for _, item := range w.keys(part) {
		for {
			err := s.Delete(w.ctx, item)
			if err == nil {
				break
			}
			if item, err = s.Get(w.ctx, item.Key); err != nil || !item.Live {
				w.Fatalf("%+v, %v", item, err)
			}
		}
	}
}

func deletedLease(w *world) {
	w.resets = true // without numbers, nothing remembers the generation
	a := w.join("a", serving(1)).run()
	w.until("it is leased", func() bool { return w.allHeld(1) })
	first := w.holder()
	w.deletes("resource/")
	w.loses(first, nil)
	w.until("it is leased anew", func() bool { return w.shared([]*member{a}, 1) && w.holder() != first })
	w.confirms(w.holder())
}

func deletedRegistration(w *world) {
	a := w.join("a", serving(1)).run()
	w.until("it is leased", func() bool { return w.allHeld(1) })
	first := w.holder()
	w.deletes("member/")
	w.loses(first, nil)
	w.until("it is leased anew", func() bool { return w.shared([]*member{a}, 1) && w.holder() != first })
	w.confirms(w.holder())
}

func foreignValues(w *world) {
	s := w.store()
	for key, value := range map[string]string{
		"resource/orders/0": "what is this",
		"resource/orders/1": `{"member":"ghost"}`,
		"resource/orders/2": `{"member":7}`,
		"resource/orders/3": `[]`,
		"resource/orders/4": "",
		"resource/orders/x": `{}`,
		"resource/":         `{}`,
		"member/ghost":      `{"name":"ghost","serves":{"orders":8}}`,
		"member/giant":      `{"name":"giant","serves":{"orders":1000000,"others":2000000000}}`,
		"member/garbage":    "what is this",
		"member/forever":    `{"name":"forever","serves":{"orders":8},"ttl":1}`,
		"member/":           `{}`,
		"other":             `{}`,
	} {
		_, err := s.Swap(w.ctx, cas.Item{Key: w.group + "/lease/" + key}, []byte(value), nil)
		w.Mustf(err == nil, "%s: %v", key, err)
	}
	at := time.Now()
	a, b := w.join("a", serving(8)).run(), w.join("b", serving(8)).run()
	w.until("all is leased", func() bool { return w.shared([]*member{a, b}, 4) })
	took := time.Since(at)
	w.Wantf(took <= 8*w.ttl, "it took %v", took)
}

func lagging(w *world) {
	var all []*member
	for n := range 3 {
		way := &wire{store: w.store(), lags: true}
		all = append(all, w.joinBy(way, fmt.Sprint("m", n), serving(6)).run())
	}
	w.until("each has two", func() bool { return w.shared(all, 2) })
	all[0].cut()
	w.until("the others have three", func() bool { return w.shared(all[1:], 3) })
	w.until("they can confirm them", w.confirmed)
	all[0].mend()
}

func killed(w *world) {
	a, b := w.join("a", serving(6)).run(), w.join("b", serving(6)).run()
	for range 3 {
		w.until("each has three that it can confirm", func() bool {
			return w.shared([]*member{a, b}, 3) && w.confirmed() && w.shared([]*member{a, b}, 3)
		})
		w.rig.Kill(w)
	}
	w.until("each has three again", func() bool {
		return w.shared([]*member{a, b}, 3) && w.confirmed() && w.shared([]*member{a, b}, 3)
	})
}

func restored(w *world) {
	if w.rig.Backup == nil || w.rig.Strands {
		w.Skip("needs Rig.Backup, after which clients can go on")
	}
	w.leasesOn(func() func() {
		restore := w.rig.Backup(w)
		w.sleep(2 * w.ttl) // so that the store goes back
		return restore
	})
}

func emptied(w *world) {
	if w.rig.Empty == nil || w.rig.Strands {
		w.Skip("needs Rig.Empty, after which clients can go on")
	}
	w.leasesOn(func() func() { return func() { w.rig.Empty(w) } })
}

// leasesOn loses what the store has, and wants all to be leased and confirmed again.
func (w *world) leasesOn(prepare func() (loss func())) {
	a, b := w.join("a", serving(6)).run(), w.join("b", serving(6)).run()
	w.until("each has three", func() bool { return w.shared([]*member{a, b}, 3) })
	loss := prepare()
	w.mu.Lock()
	w.resets = true
	w.mu.Unlock()
	loss()
	w.until("each has three that it can confirm", func() bool {
		return w.shared([]*member{a, b}, 3) && w.confirmed() && w.shared([]*member{a, b}, 3)
	})
}
