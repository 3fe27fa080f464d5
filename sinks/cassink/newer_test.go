package cassink_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/cas/memstore"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/operate"
	"github.com/epochfence/epochfence/sinks/cassink"
)

// In these tests a process of a newer version has written items, see package form.

// adds puts a field to the JSON of an item, which may be its note.
func adds(t *testing.T, s cas.Store, key, field string) {
	t.Helper()
	it, err := s.Get(t.Context(), key)
	must(t, err)
	add := func(text []byte) []byte {
		at := bytes.LastIndexByte(text, '}')
		return slices.Concat(text[:at], []byte(","+field+"}"))
	}
	if value, note := it.Value, it.Note; len(note) > 0 {
		must(t, second(s.Swap(t.Context(), it, value, add(note))))
	} else {
		must(t, second(s.Swap(t.Context(), it, add(value), nil)))
	}
}

const tomorrows = `"Tier":{"of":[1,2]}`

func TestUnknownFieldsOfItemsAreWrittenAgain(t *testing.T) {
	t.Parallel()
	mem := memstore.New()
	w := owns(t, mem, orders)
	cassink.RideLess(w.sink)
	letter := func(ctx context.Context, tx *cassink.Tx, m epoch.Message) error {
		return w.sink.DeadLetter(ctx, tx, m, w.fence.Epoch, errors.New("poison"))
	}
	must(t, w.applies(1, letter))
	op := w.sink.Operator()
	ls, err := op.DeadLetters(t.Context(), operate.DeadLetterQuery{})
	must(t, err)
	act := operate.DeadLetterAct{Kind: operate.Replay, Seen: ls[0], By: "ana", Reason: "fixed"}
	act.Seen, err = op.DoDeadLetter(t.Context(), act)
	must(t, err)
	keys := []string{
		fenceKey, "epochfence/topic/billing/orders", "epochfence/lists/billing/orders/3", "epochfence/log/billing/orders/3", "epochfence/requests",
	}
	for it, err := range mem.List(t.Context(), "epochfence/dead/") {
		must(t, err)
		keys = append(keys, it.Key)
	}
	if len(keys) != 6 {
		t.Fatalf("%q", keys)
	}
	before := map[string]string{}
	for _, key := range keys {
		adds(t, mem, key, tomorrows)
		it, err := mem.Get(t.Context(), key)
		must(t, err)
		before[key] = it.Version
	}
	w.claims()
	must(t, w.applies(2, letter))
	act.Kind = operate.Withdraw
	must(t, second(op.DoDeadLetter(t.Context(), act)))
	other := epoch.Origin{Partition: epoch.Partition{Group: "billing", Topic: "orders", Number: 4}, Log: "log", Source: "source"}
	must(t, w.sink.Seed(t.Context(), []epoch.Start{{Origin: other, Next: epoch.Position{Mark: epoch.NoMark}, Earliest: epoch.Position{Mark: epoch.NoMark}}}))
	for _, key := range keys {
		it, err := mem.Get(t.Context(), key)
		must(t, err)
		if it.Version == before[key] || !strings.Contains(string(it.Value)+string(it.Note), tomorrows) {
			t.Errorf("%s was not replaced, or without the field: %s %s", key, it.Value, it.Note)
		}
	}
}

var refunds = epoch.Partition{Group: "billing", Topic: "refunds", Number: 0}

func TestAFenceOfANewerVersionIsRefusedAndListed(t *testing.T) {
	t.Parallel()
	mem := memstore.New()
	owns(t, mem, refunds)
	w := owns(t, mem, orders)
	adds(t, mem, fenceKey, `"v":2,"Claim":["another","form"]`)
	must(t, second(mem.Swap(t.Context(), cas.Item{Key: "epochfence/fence/zones"}, []byte("of tomorrow"), nil)))
	before, err := mem.Get(t.Context(), fenceKey)
	must(t, err)
	seen := w.fence
	for what, do := range map[string]func() error{
		"read": func() error { return second(epoch.FenceOf(t.Context(), w.sink, orders)) },
		"look": func() error { return second(w.sink.Look(t.Context(), []epoch.Partition{orders})) },
		"claim": func() error {
			return second(w.sink.Claim(t.Context(), seen, epoch.NewClaim(epoch.Lease{Origin: seen.Origin, Generation: 2, Owner: "o"})))
		},
		"commit": func() error {
			return w.applies(1, func(ctx context.Context, tx *cassink.Tx, m epoch.Message) error { return sets(ctx, tx, m, "stock") })
		},
		"act": func() error {
			a := operate.Act{Kind: operate.ActPause, Partition: orders, Seen: seen, By: "ana", Reason: "why", Claim: epoch.NewClaimID()}
			return second(w.sink.Operator().Act(t.Context(), a))
		},
	} {
		err := do()
		if !errors.Is(err, epoch.ErrUnhealthy) || errors.Is(err, epoch.ErrInDoubt) || !strings.Contains(err.Error(), "newer version; update this process") {
			t.Errorf("%s: %v", what, err)
		}
	}
	if now, err := mem.Get(t.Context(), fenceKey); err != nil || now.Version != before.Version {
		t.Errorf("it was replaced: %s, %v", now.Value, err)
	}
	if got := words(t, mem, "stock"); got != "" {
		t.Errorf("stock is %q", got)
	}
	ps, err := w.sink.Operator().Partitions(t.Context(), operate.Filter{})
	if err != nil || len(ps) != 2 || ps[0].Fence.Partition != orders || !strings.Contains(ps[0].Unreadable, "newer version") || ps[1].Fence.Partition != refunds || ps[1].Epoch != 1 || ps[1].Unreadable != "" {
		t.Errorf("%+v, %v", ps, err)
	}
	if ds, err := w.sink.Operator().History(t.Context(), operate.HistoryQuery{}); err != nil || len(ds) != 2 {
		t.Errorf("%+v, %v", ds, err)
	}
}

func TestAnItemThatCannotBeReadHidesNoOther(t *testing.T) {
	for what, spoil := range map[string]func(t *testing.T, s cas.Store, key string){
		"newer": func(t *testing.T, s cas.Store, key string) { adds(t, s, key, `"v":2,"by":7`) },
		"broken": func(t *testing.T, s cas.Store, key string) {
			it, err := s.Get(t.Context(), key)
			must(t, err)
			must(t, second(s.Swap(t.Context(), it, []byte("{"), []byte("{"))))
		},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			mem := memstore.New()
			w, other := owns(t, mem, orders), owns(t, mem, refunds)
			op, records := w.sink.Operator(), operate.RecordsIn[*cassink.Tx](w.sink)
			for _, o := range []*owner{w, other} {
				must(t, o.applies(1, func(ctx context.Context, tx *cassink.Tx, m epoch.Message) error {
					box, err := tx.Outbox(m.Partition)
					must(t, err)
					must(t, box.Add(operate.OutboxEntry{IdempotencyKey: m.Partition.Topic, URL: "http://host/"}))
					return o.sink.DeadLetter(ctx, tx, m, o.fence.Epoch, errors.New("poison"))
				}))
			}
			ls, err := op.DeadLetters(t.Context(), operate.DeadLetterQuery{})
			must(t, err)
			for _, l := range ls {
				must(t, second(op.DoDeadLetter(t.Context(), operate.DeadLetterAct{Kind: operate.Replay, Seen: l, By: "ana", Reason: "fixed"})))
			}
			for _, run := range []string{"a", "b"} {
				must(t, records.Alive(t.Context(), operate.Process{Run: run, Group: "billing", Name: run, Every: 1e9}))
			}
			for _, prefix := range []string{"dead/billing/orders", "outbox/billing/orders", "log/billing/orders", "process/a"} {
				for it, err := range mem.List(t.Context(), "epochfence/"+prefix) {
					must(t, err)
					spoil(t, mem, it.Key)
				}
			}
			sweeps := operate.RecordsIn[*cassink.Tx](w.sink)
			must(t, sweeps.Alive(t.Context(), operate.Process{Run: "b", Group: "billing", Name: "b", Every: 1e9}))

			ls, err = op.DeadLetters(t.Context(), operate.DeadLetterQuery{})
			if err != nil || len(ls) != 2 || ls[0].Message.Partition != orders || !strings.Contains(ls[0].Error, "it cannot be read") || ls[1].Error != "poison" {
				t.Errorf("dead letters: %+v, %v", ls, err)
			}
			asked, err := records.Requests(t.Context(), []epoch.Partition{orders, refunds})
			if err != nil || len(asked.Replays) != 1 || asked.Replays[0].Message.Partition != refunds {
				t.Errorf("requests: %+v, %v", asked, err)
			}
			es, err := op.OutboxEntries(t.Context(), operate.OutboxQuery{})
			if err != nil || len(es) != 2 || es[0].Partition != orders || !strings.Contains(es[0].URL, "it cannot be read") || es[1].IdempotencyKey != "refunds" {
				t.Errorf("outbox: %+v, %v", es, err)
			}
			ds, err := op.History(t.Context(), operate.HistoryQuery{})
			if err != nil || len(ds) != 3 || ds[2].Partition != orders || !strings.Contains(ds[2].Reason, "it cannot be read") {
				t.Errorf("audit log: %+v, %v", ds, err)
			}
			ps, err := op.Processes(t.Context(), "")
			if err != nil || len(ps) != 2 || ps[0].Run != "a" || !strings.Contains(ps[0].Problems, "it cannot be read") || ps[1].Run != "b" || ps[1].Problems != "" {
				t.Errorf("processes: %+v, %v", ps, err)
			}
			w.claims() // though its log cannot be read
		})
	}
}

// It has the name of this process, and was not seen for an hour.
func TestASignOfLifeOfANewerVersionIsNotSwept(t *testing.T) {
	t.Parallel()
	mem := memstore.New()
	sink, err := cassink.Open(t.Context(), mem, cassink.Options{})
	must(t, err)
	records := operate.RecordsIn[*cassink.Tx](sink)
	alive := func(run string) error {
		return records.Alive(t.Context(), operate.Process{Run: run, Group: "billing", Name: "b", Every: 1e9})
	}
	must(t, alive("theirs"))
	it, err := mem.Get(t.Context(), "epochfence/process/theirs")
	must(t, err)
	var r operate.Row
	must(t, json.Unmarshal(it.Value, &r))
	r.Body, r.Changed = bytes.Replace(r.Body, []byte(`"every_ms":1000`), []byte(`"every_ms":{"min":1},"v":2`), 1), r.Changed.Add(-time.Hour)
	value, err := json.Marshal(r)
	must(t, err)
	must(t, second(mem.Swap(t.Context(), it, value, nil)))
	must(t, alive("ours"))
	ps, err := sink.Operator().Processes(t.Context(), "billing")
	if err != nil || len(ps) != 2 || ps[0].Run != "theirs" || !strings.Contains(ps[0].Problems, "newer version") || ps[0].Seen.IsZero() {
		t.Errorf("%+v, %v", ps, err)
	}
}

// A fence that relies on lists of a newer version halts its partition, and no other.
func TestListsOfANewerVersionAreRefused(t *testing.T) {
	t.Parallel()
	mem := memstore.New()
	w, other := owns(t, mem, orders), owns(t, mem, refunds)
	cassink.RideLess(w.sink)
	posts := func(_ context.Context, tx *cassink.Tx, m epoch.Message) error {
		box, err := tx.Outbox(m.Partition)
		must(t, err)
		return box.Add(operate.OutboxEntry{IdempotencyKey: m.Partition.Topic, URL: "http://host/"})
	}
	must(t, w.applies(1, posts))
	must(t, w.applies(2, posts)) // relies on the lists of the first
	must(t, other.applies(1, posts))
	adds(t, mem, "epochfence/lists/billing/orders/3", `"v":2`)
	w.claims()
	if err := w.applies(3, posts); !errors.Is(err, epoch.ErrUnhealthy) || errors.Is(err, epoch.ErrInDoubt) || !strings.Contains(err.Error(), "newer version; update this process") {
		t.Error(err)
	}
	must(t, other.applies(2, posts))
	if es := left(t, w.sink); len(es) != 2 || es[0].IdempotencyKey != "refunds" || es[1].IdempotencyKey != "refunds" {
		t.Errorf("%+v", es)
	}
}

// Nothing of it was written, so it is no doubt.
func TestAnOperatorWhoseRecordIsOfANewerVersionIsRefused(t *testing.T) {
	t.Parallel()
	mem := memstore.New()
	w := owns(t, mem, orders)
	must(t, w.applies(1, func(ctx context.Context, tx *cassink.Tx, m epoch.Message) error {
		return w.sink.DeadLetter(ctx, tx, m, w.fence.Epoch, errors.New("poison"))
	}))
	op := w.sink.Operator()
	ls, err := op.DeadLetters(t.Context(), operate.DeadLetterQuery{})
	must(t, err)
	must(t, second(mem.Swap(t.Context(), cas.Item{Key: "epochfence/requests"}, []byte(`{"v":2}`), nil)))
	refused := func(what string, err error) {
		t.Helper()
		if errors.Is(err, epoch.ErrInDoubt) || !strings.Contains(fmt.Sprint(err), "newer version; update this process") {
			t.Errorf("%s: %v", what, err)
		}
	}
	_, err = op.DoDeadLetter(t.Context(), operate.DeadLetterAct{Kind: operate.Replay, Seen: ls[0], By: "ana", Reason: "fixed"})
	refused("a replay", err)
	adds(t, mem, "epochfence/log/billing/orders/3", `"v":2`)
	_, err = op.Act(t.Context(), operate.Act{Kind: operate.ActPause, Partition: orders, Seen: w.fence, By: "ana", Reason: "why", Claim: epoch.NewClaimID()})
	refused("an action", err)
	if f, err := epoch.FenceOf(t.Context(), w.sink, orders); err != nil || f.Claim != w.fence.Claim || f.Pause.Mode != epoch.Running {
		t.Errorf("%+v, %v", f, err)
	}
}
