package stock

import (
	"fmt"
	"testing"
)

const (
	testSeed  = 5
	testItems = 4
)

// exactBooks are what 40 messages on two partitions lead to.
func exactBooks(t *testing.T) (sqlBooks, []place) {
	t.Helper()
	b := newTestDatabase(t, "")
	sent := make([]place, 40)
	for i := range sent {
		r := reservation(testSeed, i, testItems)
		sent[i] = place{int32(i % 2), int64(i / 2)}
		change(t, b, fmt.Sprintf(`
			INSERT INTO ledger (reservation, item, quantity, kafka_partition, kafka_offset, epoch, worker) VALUES (%d, '%s', %d, %d, %d, %d, 'w');
			UPDATE stock SET present = present - %[3]d WHERE item = '%[2]s'`, i, r.Item, r.Quantity, sent[i].partition, sent[i].offset, 1+i/10))
	}
	return b, sent
}

func change(t *testing.T, b sqlBooks, statements string) {
	t.Helper()
	if _, err := b.DB.ExecContext(t.Context(), statements); err != nil {
		t.Fatal(err)
	}
}

func TestTheVerdictFindsEachKindOfDamage(t *testing.T) {
	quantity := func(i int) int64 { return reservation(testSeed, i, testItems).Quantity }
	const (
		again = `INSERT INTO ledger (reservation, item, quantity, kafka_partition, kafka_offset, epoch, worker)
			SELECT reservation, item, quantity, kafka_partition, kafka_offset, epoch, worker FROM ledger WHERE reservation = 7;`
		taken = ` present %s (SELECT quantity FROM ledger WHERE reservation = %d LIMIT 1) WHERE item = (SELECT item FROM ledger WHERE reservation = %[2]d)`
	)
	take := func(i int) string { return "UPDATE stock SET present =" + fmt.Sprintf(taken, "-", i) + ";" }
	back := func(i int) string { return "UPDATE stock SET present =" + fmt.Sprintf(taken, "+", i) + ";" }
	for name, c := range map[string]struct {
		harm  string
		found func(verdict) bool
	}{
		"doubled": {again + take(7), func(v verdict) bool {
			return v.Doubled == 1 && v.Units == quantity(7) && v.Unsung == 0
		}},
		"at the wrong place": {`UPDATE ledger SET kafka_offset = 99 WHERE reservation = 30`, func(v verdict) bool {
			return v.Alien == 1 && v.Lost == 1
		}},
		"stock taken twice for one line": {take(3), func(v verdict) bool { return v.Unsung == 1 && v.Units == quantity(3) }},
		"stock not taken":                {back(3), func(v verdict) bool { return v.Unsung == 1 && v.Units > 0 }},
		"too much for one, too little for another": {
			`UPDATE stock SET present = present + 1 WHERE item = 'item-00000'; UPDATE stock SET present = present - 1 WHERE item = 'item-00001'`,
			func(v verdict) bool { return v.Unsung == 2 && v.Units == 2 },
		},
		"a reservation changed": {
			`UPDATE ledger SET quantity = quantity + 1 WHERE reservation = 9;
			 UPDATE stock SET present = present - 1 WHERE item = (SELECT item FROM ledger WHERE reservation = 9)`,
			func(v verdict) bool { return v.Alien == 1 && v.Lost == 1 && v.Units == 1 },
		},
		"a reservation nobody made": {
			`INSERT INTO ledger (reservation, item, quantity, kafka_partition, kafka_offset, epoch, worker) VALUES (1099511627776, 'item-00000', 1, 0, 0, 1, 'w');
			 UPDATE stock SET present = present - 1 WHERE item = 'item-00000'`,
			func(v verdict) bool { return v.Alien == 1 && v.Units == 1 },
		},
	} {
		t.Run(name, func(t *testing.T) {
			b, sent := exactBooks(t)
			if v, err := judge(t.Context(), b, testSeed, testItems, sent); err != nil || !v.exact() {
				t.Fatalf("without damage: %+v, %v", v, err)
			}
			change(t, b, c.harm)
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

func TestBooksThatCannotBeReadAreNotJudged(t *testing.T) {
	b, sent := exactBooks(t)
	change(t, b, `DROP TABLE stock`)
	if _, err := judge(t.Context(), b, testSeed, testItems, sent); err == nil {
		t.Error("no error")
	}
}
