package main

import (
	"context"
	"errors"
	"testing"

	"github.com/epochfence/epochfence/internal/show"
)

// someBooks are books in memory.
type someBooks struct {
	entries []entry
	present map[string]int64
}

func (b *someBooks) ledger(_ context.Context, each func(entry)) error {
	for _, e := range b.entries {
		each(e)
	}
	return nil
}

func (b *someBooks) stock(context.Context) (map[string]int64, error) { return b.present, nil }

func (b *someBooks) apply(e entry) {
	b.entries = append(b.entries, e)
	b.present[e.Item] -= e.Quantity
}

const (
	testSeed  = 5
	testItems = 4
)

// exactBooks are what 40 messages on two partitions lead to.
func exactBooks() (*someBooks, []show.Place) {
	b := &someBooks{present: map[string]int64{}}
	for n := range testItems {
		b.present[itemName(n)] = initial
	}
	sent := make([]show.Place, 40)
	for i := range sent {
		sent[i] = show.Place{Partition: int32(i % 2), Offset: int64(i / 2)}
		b.apply(entry{Reservation: reservation(testSeed, i, testItems), Place: sent[i], Epoch: int64(1 + i/10)})
	}
	return b, sent
}

func TestTheVerdictFindsEachKindOfDamage(t *testing.T) {
	for name, c := range map[string]struct {
		harm  func(*someBooks)
		found func(verdict) bool
	}{
		"doubled": {
			func(b *someBooks) { b.apply(b.entries[7]) },
			func(v verdict) bool {
				return v.Doubled == 1 && v.Units == reservation(testSeed, 7, testItems).Quantity && v.Unsung == 0
			},
		},
		"lost": {
			func(b *someBooks) {
				b.present[b.entries[7].Item] += b.entries[7].Quantity
				b.entries = append(b.entries[:7], b.entries[8:]...)
			},
			func(v verdict) bool { return v.Lost == 1 && v.Units > 0 && v.Unsung == 0 },
		},
		"out of order": {
			func(b *someBooks) { b.entries[0], b.entries[2] = b.entries[2], b.entries[0] },
			func(v verdict) bool { return v.Disorder == 1 && v.Units == 0 },
		},
		"epoch fell": {
			func(b *someBooks) { b.entries[30].Epoch = 1 },
			func(v verdict) bool { return v.Regressed == 1 },
		},
		"stock taken twice for one line": {
			func(b *someBooks) { b.present[b.entries[3].Item] -= b.entries[3].Quantity },
			func(v verdict) bool { return v.Unsung == 1 && v.Units == reservation(testSeed, 3, testItems).Quantity },
		},
		"stock not taken": {
			func(b *someBooks) { b.present[b.entries[3].Item] += b.entries[3].Quantity },
			func(v verdict) bool { return v.Unsung == 1 && v.Units > 0 },
		},
		"too much for one, too little for another": {
			func(b *someBooks) { b.present[itemName(0)]++; b.present[itemName(1)]-- },
			func(v verdict) bool { return v.Unsung == 2 && v.Units == 2 },
		},
		"a reservation changed": {
			func(b *someBooks) { b.entries[9].Quantity++; b.present[b.entries[9].Item]-- },
			func(v verdict) bool { return v.Alien == 1 && v.Lost == 1 && v.Units == 1 },
		},
		"a reservation nobody made": {
			func(b *someBooks) {
				b.apply(entry{Reservation: Reservation{ID: 1 << 40, Item: itemName(0), Quantity: 1}})
			},
			func(v verdict) bool { return v.Alien == 1 && v.Units == 1 },
		},
	} {
		t.Run(name, func(t *testing.T) {
			b, sent := exactBooks()
			c.harm(b)
			v, err := judge(t.Context(), b, testSeed, testItems, sent)
			if err != nil {
				t.Fatal(err)
			}
			if v.exact() {
				t.Errorf("found exact: %+v", v)
			}
			if !c.found(v) {
				t.Errorf("not found in %+v", v)
			}
		})
	}
}

func TestTheVerdictOnExactBooksIsExact(t *testing.T) {
	b, sent := exactBooks()
	v, err := judge(t.Context(), b, testSeed, testItems, sent)
	if err != nil || !v.exact() {
		t.Errorf("%+v, %v", v, err)
	}
}

type brokenBooks struct{ *someBooks }

var errUnreadable = errors.New("unreadable")

func (brokenBooks) stock(context.Context) (map[string]int64, error) { return nil, errUnreadable }

func TestBooksThatCannotBeReadAreNotJudged(t *testing.T) {
	b, sent := exactBooks()
	if _, err := judge(t.Context(), brokenBooks{b}, testSeed, testItems, sent); !errors.Is(err, errUnreadable) {
		t.Error(err)
	}
}
