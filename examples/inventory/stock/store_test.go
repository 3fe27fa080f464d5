package stock

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/epochfence/epochfence/cas/memstore"
	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/show"
)

// newTestItems are what the show's parent makes.
func newTestItems(t *testing.T) itemBooks {
	t.Helper()
	b := itemBooks{memstore.New(), &show.Column{ID: "inventory-test"}}
	if err := b.create(t.Context(), testItems); err != nil {
		t.Fatal(err)
	}
	return b
}

func TestTheVerdictOfAStoreFindsDamage(t *testing.T) {
	for name, c := range map[string]struct {
		harm  func(*record)
		found func(verdict) bool
	}{
		"doubled":      {func(r *record) { r.Ledger = append(r.Ledger, r.Ledger[0]) }, func(v verdict) bool { return v.Doubled == 1 && v.Disorder == 1 && v.Unsung == 1 }},
		"lost":         {func(r *record) { r.Ledger = r.Ledger[1:] }, func(v verdict) bool { return v.Lost == 1 && v.Unsung == 1 }},
		"out of order": {func(r *record) { r.Ledger[0], r.Ledger[1] = r.Ledger[1], r.Ledger[0] }, func(v verdict) bool { return v.Disorder == 1 && v.Units == 0 }},
		"epoch fell":   {func(r *record) { r.Ledger[0].Epoch++ }, func(v verdict) bool { return v.Regressed == 1 }},
		"misplaced":    {func(r *record) { r.Ledger[0].Offset += 100 }, func(v verdict) bool { return v.Alien == 1 && v.Lost == 1 }},
		"stock":        {func(r *record) { r.Present-- }, func(v verdict) bool { return v.Units == 1 && v.Unsung == 1 }},
	} {
		t.Run(name, func(t *testing.T) {
			b := newTestItems(t)
			sent := make([]place, 40)
			for i := range sent {
				sent[i] = place{int32(i % 2), int64(i / 2)}
				r := reservation(testSeed, i, testItems)
				m := consumer.Message{Partition: epoch.Partition{Number: sent[i].partition}, Offset: epoch.Offset(sent[i].offset), Value: fmt.Appendf(nil, `{"id":%d,"item":%q,"quantity":%d}`, i, r.Item, r.Quantity)}
				if err := replaceItem(t.Context(), b.store, prefix(b.ID), m, 1, "w"); err != nil {
					t.Fatal(err)
				}
			}
			if v, err := judge(t.Context(), b, testSeed, testItems, sent); err != nil || !v.exact() {
				t.Fatalf("before: %+v, %v", v, err)
			}
			damage(t, b, c.harm)
			if v, err := judge(t.Context(), b, testSeed, testItems, sent); err != nil || v.exact() || !c.found(v) {
				t.Errorf("%+v, %v", v, err)
			}
		})
	}
}

func damage(t *testing.T, b itemBooks, harm func(*record)) {
	t.Helper()
	var r record
	seen, err := b.store.Get(t.Context(), prefix(b.ID)+itemName(1))
	if err == nil {
		err = json.Unmarshal(seen.Value, &r)
	}
	if err != nil {
		t.Fatal(err)
	}
	harm(&r)
	value, err := json.Marshal(r)
	if err == nil {
		_, err = b.store.Swap(t.Context(), seen, value, nil)
	}
	if err != nil {
		t.Fatal(err)
	}
}
