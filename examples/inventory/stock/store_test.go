package stock

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/epochfence/epochfence/cas/memstore"
	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/show"
	"github.com/epochfence/epochfence/sinks/cassink"
)

// newTestItems are what the show's parent makes.
func newTestItems(t *testing.T) itemBooks {
	t.Helper()
	b := itemBooks{memstore.New(), "inventory-test"}
	if err := b.create(t.Context(), &show.Column{}, testItems); err != nil {
		t.Fatal(err)
	}
	return b
}

func TestTheHandlerOfAStoreTakesStockOnceForEachReservation(t *testing.T) {
	b := newTestItems(t)
	log, sent := testLog(t, 50)
	sink, err := cassink.Open(t.Context(), b.store, cassink.Options{Prefix: fences(b.id)})
	if err != nil {
		t.Fatal(err)
	}
	if err := consumer.Run(bounded(t, log), log.Member("m"), sink, consumer.Batches(reserveItems(prefix(b.id), "worker 7")), consumer.Options{Guarantee: epoch.PerItem}); err != nil {
		t.Fatal(err)
	}
	v, err := judge(t.Context(), b, testSeed, testItems, sent)
	if err != nil || !v.exact() || !v.Epochs {
		t.Errorf("%+v, %v", v, err)
	}
	if n, err := b.applied(t.Context()); n != 50 || err != nil {
		t.Errorf("%d are applied, %v", n, err)
	}
	for not, want := range map[string]bool{"worker 7": false, "worker 8": true} {
		if found, err := b.elsewhere(t.Context(), place{1, 24}, not); found != want || err != nil {
			t.Errorf("elsewhere than %s: %t, %v", not, found, err)
		}
	}
	if err := b.remove(t.Context()); err != nil {
		t.Error(err)
	}
	for item, err := range b.store.List(t.Context(), "") {
		t.Errorf("%s is left, %v", item.Key, err)
	}
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
				if err := replaceItem(t.Context(), b.store, prefix(b.id), m, 1, "w"); err != nil {
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
	seen, err := b.store.Get(t.Context(), prefix(b.id)+itemName(1))
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

func TestTheHandlerOfAStoreRefusesBadMessagesAndWritesNothing(t *testing.T) {
	b := newTestItems(t)
	for _, value := range badMessages {
		if err := replaceItem(t.Context(), b.store, prefix(b.id), consumer.Message{Value: []byte(value)}, 1, "w"); err == nil {
			t.Errorf("%q: no error", value)
		}
	}
	if n, err := b.applied(t.Context()); n > 0 || err != nil {
		t.Errorf("%d are applied, %v", n, err)
	}
}

func TestAWrongSinkIsRefusedWithWhatThereIs(t *testing.T) {
	for args, want := range map[string]string{
		"-sink redis": "-sink is none of nats (a server in this process), nats://HOST:PORT/BUCKET",
		"-sink nats -database postgres://u:p@h/d": "-sink and -database are both given",
	} {
		var out bytes.Buffer
		if err := show.Parse(New(NATS), strings.Fields(args), &out); err == nil || !strings.Contains(out.String(), want) {
			t.Errorf("%s: %v, %q", args, err, out.String())
		}
	}
	var out, errOut bytes.Buffer
	if status := show.Run(t.Context(), New(NATS), []string{"-sink", "nats://127.0.0.1:1/items"}, &out, &errOut); status != show.StatusNot || !strings.Contains(errOut.String(), "-sink: cannot reach nats") {
		t.Errorf("status %d: %s%s", status, out.String(), errOut.String())
	}
}
