package main

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/epochfence/epochfence/internal/show"
)

const (
	testSeed     = 5
	testAccounts = 4
)

func testPayment(i int) Payment { return payment(testSeed, i, testAccounts) }

// someBooks are a ledger and the charges of a gateway.
type someBooks struct{ ledger, charges *show.Database }

// exactBooks are what 40 messages on two partitions lead to. Charge n is of payment n-1.
func exactBooks(t *testing.T) (someBooks, []int64) {
	t.Helper()
	charges, err := show.OpenDatabase(t.Context(), filepath.Join(t.TempDir(), "gateway.db"), "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(charges.Close)
	b := someBooks{newTestLedger(t, ""), charges}
	sent := make([]int64, 40)
	ledger, gateway := "", gatewayTables
	for i := range sent {
		p := testPayment(i)
		sent[i] = int64(1 + i)
		gateway += fmt.Sprintf("INSERT INTO charges VALUES (%d, %d, '%s', %d, %d);", 1+i, p.ID, p.Account, p.Cents, 1+i/10)
		ledger += fmt.Sprintf(`INSERT INTO payments (payment, account, cents, charge, stream_partition, stream_sequence, epoch, worker)
			VALUES (%d, '%s', %d, %d, %d, %d, %d, 'w');`, p.ID, p.Account, p.Cents, 1+i, p.Account[len(p.Account)-1]%2, sent[i], 1+i/10)
	}
	change(t, b.ledger, ledger)
	change(t, b.charges, gateway)
	return b, sent
}

func change(t *testing.T, db *show.Database, statements string) {
	t.Helper()
	if _, err := db.ExecContext(t.Context(), statements); err != nil {
		t.Fatal(err)
	}
}

// sameAccount are two payments of one account, the earlier one first.
func sameAccount() (int, int) {
	for j := 1; ; j++ {
		if testPayment(0).Account == testPayment(j).Account {
			return 0, j
		}
	}
}

func TestTheVerdictFindsEachKindOfDamage(t *testing.T) {
	const (
		written = `INSERT INTO payments (payment, account, cents, charge, stream_partition, stream_sequence, epoch, worker)
			SELECT payment, account, cents, charge, stream_partition, stream_sequence, epoch, worker FROM payments WHERE payment = 7;`
		charged = `INSERT INTO charges (payment, account, cents, epoch) SELECT payment, account, cents, epoch FROM charges WHERE payment = 7;`
	)
	for name, c := range map[string]struct {
		ledger, charges string // what happens to them
		found           func(verdict) bool
	}{
		"charged again, because nobody heard of the first": {"", charged, func(v verdict) bool {
			return v.Charges.Doubled == 1 && v.Ledger.Doubled == 0 && v.Overpaid == testPayment(7).Cents && v.Crossed == 0
		}},
		"written and charged again": {written, charged, func(v verdict) bool {
			return v.Charges.Doubled == 1 && v.Ledger.Doubled == 1 && v.Overpaid > 0
		}},
		"written again, charged once": {written, "", func(v verdict) bool { return v.Ledger.Doubled == 1 && v.Overpaid == 0 }},
		"not charged": {"", `DELETE FROM charges WHERE payment = 7`, func(v verdict) bool {
			return v.Charges.Lost == 1 && v.Crossed == 1
		}},
		"charged and not known to be": {`UPDATE payments SET charge = NULL WHERE payment = 7`, "", func(v verdict) bool { return v.Crossed == 1 }},
		"the receipt of another": {`UPDATE payments SET charge = 17 - charge WHERE payment IN (7, 8)`, "", func(v verdict) bool {
			return v.Crossed == 2
		}},
		"a cent too much": {"", `UPDATE charges SET cents = cents + 1 WHERE payment = 3`, func(v verdict) bool {
			return v.Charges.Alien == 1 && v.Charges.Lost == 1 && v.Overpaid == 1
		}},
		"a cent too little in the ledger": {`UPDATE payments SET cents = cents - 1 WHERE payment = 3`, "", func(v verdict) bool {
			return v.Ledger.Alien == 1 && v.Ledger.Lost == 1
		}},
		"a charge nobody asked for": {"", `INSERT INTO charges VALUES (99, 1099511627776, 'account-00000', 5, 4)`, func(v verdict) bool {
			return v.Charges.Alien == 1 && v.Overpaid == 5
		}},
		"an account nobody has": {"", `INSERT INTO charges VALUES (99, 1, 'account-99999', 5, 4)`, func(v verdict) bool {
			return v.Charges.Alien == 1 && v.Overpaid == 5
		}},
		"lost": {`DELETE FROM payments WHERE payment = 0`, `DELETE FROM charges WHERE payment = 0`, func(v verdict) bool {
			return v.Ledger.Lost == 1 && v.Charges.Lost == 1
		}},
		"charges of an account out of order": {
			`UPDATE payments SET charge = 99 WHERE payment = 0`,
			`UPDATE charges SET charge = 99 WHERE payment = 0`,
			func(v verdict) bool { return v.Charges.Disorder > 0 && v.Crossed == 0 && v.exact(false) },
		},
		"a zombie's charge": {"", `UPDATE charges SET epoch = 1 WHERE payment = 39`, func(v verdict) bool {
			return v.Charges.Regressed == 1 && v.exact(false)
		}},
		"a zombie's line": {`UPDATE payments SET epoch = 1 WHERE payment = 39`, "", func(v verdict) bool { return v.Ledger.Regressed == 1 }},
	} {
		t.Run(name, func(t *testing.T) {
			b, sent := exactBooks(t)
			if v, err := judge(t.Context(), b.ledger, b.charges, testSeed, testAccounts, sent); err != nil || !v.exact(true) {
				t.Fatalf("without damage: %+v, %v", v, err)
			}
			change(t, b.ledger, c.ledger)
			change(t, b.charges, c.charges)
			v, err := judge(t.Context(), b.ledger, b.charges, testSeed, testAccounts, sent)
			if err != nil {
				t.Fatal(err)
			}
			if v.exact(true) {
				t.Errorf("found exact: %+v", v)
			}
			if !c.found(v) {
				t.Errorf("not found in %+v", v)
			}
		})
	}
}

func TestBooksThatCannotBeReadAreNotJudged(t *testing.T) {
	for _, table := range []string{"payments", "charges"} {
		b, sent := exactBooks(t)
		change(t, map[string]*show.Database{"payments": b.ledger, "charges": b.charges}[table], "DROP TABLE "+table)
		if _, err := judge(t.Context(), b.ledger, b.charges, testSeed, testAccounts, sent); err == nil || !strings.Contains(err.Error(), table) {
			t.Error(err)
		}
	}
}
