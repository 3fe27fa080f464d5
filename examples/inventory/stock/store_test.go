package stock

import (
	"encoding/json"
	"testing"

	"github.com/epochfence/epochfence/cas/memstore"
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

// disorder exchanges two deductions from an item, and wants the audit to find that.
func disorder(t *testing.T, b itemBooks, sent []place) {
	t.Helper()
	seen, err := b.store.Get(t.Context(), prefix(b.ID)+itemName(1))
	if err != nil {
		t.Fatal(err)
	}
	var r record
	if err := json.Unmarshal(seen.Value, &r); err != nil {
		t.Fatal(err)
	}
	last := len(r.Ledger) - 1
	r.Ledger[0], r.Ledger[last] = r.Ledger[last], r.Ledger[0]
	value, err := json.Marshal(r)
	if err == nil {
		_, err = b.store.Swap(t.Context(), seen, value, nil)
	}
	if err != nil {
		t.Fatal(err)
	}
	if v, err := judge(t.Context(), b, testSeed, testItems, sent); err != nil || v.Disorder == 0 || v.Units != 0 {
		t.Errorf("%+v, %v", v, err)
	}
}
