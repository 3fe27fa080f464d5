package outboxtest

import (
	"fmt"
	"slices"
	"time"

	"github.com/epochfence/epochfence/consumer/memsource"
	"github.com/epochfence/epochfence/outbox"
)

// This file has the histories of relays.

// converse continues by itself: no message comes, and no other claim, after those that began it.
func converse[TX any](w *world[TX]) {
	w.up.Store(true)
	entry := func(body string) outbox.Entry {
		return outbox.Entry{Key: "key " + body, Scope: "s", URL: w.receiver.URL, Body: []byte(body)}
	}
	log := memsource.New("orders", 1)
	log.Append(0, "a")
	w.runs(log.Member("a"), time.Millisecond, entry, func(body string) string { return map[string]string{"a": "b", "b": "c", "c": "d"}[body] })
	w.await("the last answer", func() bool { return len(w.arrived()) == 4 })
	w.awaitLeft(0)
	if got := w.arrived(); !slices.Equal(got, []string{"a", "b", "c", "d"}) {
		w.Errorf("came %q", got)
	}
}

// handsOver takes a partition from a member that does not hear of it, again and again, while the
// receiver fails.
func handsOver[TX any](w *world[TX]) {
	const accounts, rounds = 3, 12
	log := memsource.New("orders", 1)
	group := log.Group(memsource.DefaultGroup)
	group.Script()
	members := []*memsource.Member{group.Member("a"), group.Member("b")}
	for _, m := range members {
		w.runs(m, time.Millisecond, func(body string) outbox.Entry {
			return outbox.Entry{Key: body[:1], Scope: body[:1], URL: w.receiver.URL, Body: []byte(body)}
		}, nil)
	}
	var want [accounts][]string
	for n := range rounds {
		for a := range accounts {
			want[a] = append(want[a], fmt.Sprintf("%d/%02d", a, n))
			log.Append(0, want[a][n])
		}
		w.up.Store(n%2 == 1)
		group.Grant(members[n%2], "orders", 0)
		came, refused := len(w.arrived()), w.refused.Load()
		w.await("something is sent", func() bool { return len(w.arrived()) > came || w.refused.Load() > refused })
	}
	w.await("everything is sent", func() bool { return len(w.arrived()) >= accounts*rounds })
	w.awaitLeft(0)
	var got [accounts][]string
	for _, body := range w.arrived() {
		a := body[0] - '0'
		got[a] = append(got[a], body)
	}
	for a := range got {
		if !slices.Equal(got[a], want[a]) {
			w.Errorf("the effects of account %d are %q, want %q", a, got[a], want[a])
		}
	}
}
