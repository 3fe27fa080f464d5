package main

import (
	"context"
	"errors"
	"testing"

	"github.com/epochfence/epochfence/httpfence"
	"github.com/epochfence/epochfence/internal/show"
)

// someBooks are a ledger and a gateway in memory.
type someBooks struct {
	written []line
	made    []charge
	noted   map[string]int
	broken  error
}

func (b *someBooks) lines(_ context.Context, each func(line)) error {
	for _, l := range b.written {
		each(l)
	}
	return nil
}

func (b *someBooks) charges(_ context.Context, each func(charge)) error {
	for _, c := range b.made {
		each(c)
	}
	return nil
}

func (b *someBooks) notes(context.Context) (map[string]int, error) { return b.noted, b.broken }

// charge charges a payment once more.
func (b *someBooks) charge(p Payment, epoch int64) int64 {
	n := int64(len(b.made) + 1)
	b.made = append(b.made, charge{Payment: p, Number: n, Epoch: epoch})
	return n
}

// pay writes and charges the payment of a message.
func (b *someBooks) pay(p Payment, at show.Place, epoch int64) {
	b.written = append(b.written, line{Payment: p, Place: at, Charge: b.charge(p, epoch), Epoch: epoch})
}

const (
	testSeed     = 5
	testAccounts = 4
)

func testPayment(i int) Payment { return payment(testSeed, i, testAccounts) }

// exactBooks are what 40 messages on two partitions lead to.
func exactBooks() (*someBooks, []show.Place) {
	b := &someBooks{noted: map[string]int{}}
	sent := make([]show.Place, 40)
	for i := range sent {
		p := testPayment(i)
		sent[i] = show.Place{Partition: partitionOf(p.Account, 2), Offset: int64(1 + i)}
		b.pay(p, sent[i], int64(1+i/10))
	}
	return b, sent
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
	early, late := sameAccount()
	for name, c := range map[string]struct {
		harm  func(*someBooks)
		found func(verdict) bool
	}{
		"charged again, because nobody heard of the first": {
			func(b *someBooks) { b.charge(testPayment(7), 4) },
			func(v verdict) bool {
				return v.Charges.Doubled == 1 && v.Ledger.Doubled == 0 && v.Overpaid == testPayment(7).Cents && v.Unequal == 1 && v.Crossed == 0
			},
		},
		"written and charged again": {
			func(b *someBooks) { b.pay(testPayment(7), b.written[7].Place, 4) },
			func(v verdict) bool { return v.Charges.Doubled == 1 && v.Ledger.Doubled == 1 && v.Overpaid > 0 },
		},
		"written again, charged once": {
			func(b *someBooks) { b.written = append(b.written, b.written[7]) },
			func(v verdict) bool { return v.Ledger.Doubled == 1 && v.Unequal == 1 && v.Overpaid == 0 },
		},
		"not charged": {
			func(b *someBooks) { b.made = append(b.made[:7], b.made[8:]...) },
			func(v verdict) bool {
				return v.Charges.Lost == 1 && v.Crossed == 1 && v.Unpaid == testPayment(7).Cents && v.Unequal == 1
			},
		},
		"charged and not known to be": {
			func(b *someBooks) { b.written[7].Charge = 0 },
			func(v verdict) bool { return v.Crossed == 1 && v.Unequal == 0 },
		},
		"the receipt of another": {
			func(b *someBooks) {
				b.written[7].Charge, b.written[8].Charge = b.written[8].Charge, b.written[7].Charge
			},
			func(v verdict) bool { return v.Crossed == 2 },
		},
		"a cent too much": {
			func(b *someBooks) { b.made[3].Cents++ },
			func(v verdict) bool {
				return v.Charges.Alien == 1 && v.Charges.Lost == 1 && v.Overpaid == 1 && v.Unequal == 1
			},
		},
		"a cent from one account to another": {
			func(b *someBooks) { b.made[early].Cents++; b.made[early+1].Cents-- },
			func(v verdict) bool { return v.Charges.Alien == 2 && v.Charges.Lost == 2 },
		},
		"a charge nobody asked for": {
			func(b *someBooks) { b.charge(Payment{ID: 1 << 40, Account: accountName(0), Cents: 5}, 4) },
			func(v verdict) bool { return v.Charges.Alien == 1 && v.Overpaid == 5 },
		},
		"an account nobody has": {
			func(b *someBooks) { b.charge(Payment{ID: 1, Account: "account-99999", Cents: 5}, 4) },
			func(v verdict) bool { return v.Charges.Alien == 1 && v.Overpaid == 5 && v.Unequal == 1 },
		},
		"lost": {
			func(b *someBooks) {
				b.written, b.made = b.written[1:], b.made[1:]
			},
			func(v verdict) bool { return v.Ledger.Lost == 1 && v.Charges.Lost == 1 },
		},
		"charges of an account out of order": {
			func(b *someBooks) {
				b.made[early].Payment, b.made[late].Payment = b.made[late].Payment, b.made[early].Payment
				b.written[early].Charge, b.written[late].Charge = b.written[late].Charge, b.written[early].Charge
			},
			func(v verdict) bool { return v.Charges.Disorder > 0 && v.Unequal == 0 && v.exact(false) },
		},
		"a zombie's charge": {
			func(b *someBooks) { b.made[39].Epoch = 1 },
			func(v verdict) bool { return v.Charges.Regressed == 1 && v.exact(false) },
		},
		"a zombie's line": {
			func(b *someBooks) { b.written[39].Epoch = 1 },
			func(v verdict) bool { return v.Ledger.Regressed == 1 },
		},
	} {
		t.Run(name, func(t *testing.T) {
			b, sent := exactBooks()
			c.harm(b)
			v, err := judge(t.Context(), b, b, testSeed, testAccounts, sent)
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

func TestTheVerdictOnExactBooksIsExactWhateverTheGatewayNoted(t *testing.T) {
	b, sent := exactBooks()
	b.noted = map[string]int{httpfence.Stale.String(): 3, httpfence.Replayed.String(): 2, notAnswered: 1}
	v, err := judge(t.Context(), b, b, testSeed, testAccounts, sent)
	if err != nil || !v.exact(true) || v.Refused != 3 || v.Replayed != 2 || v.Unanswered != 1 {
		t.Errorf("%+v, %v", v, err)
	}
}

func TestBooksThatCannotBeReadAreNotJudged(t *testing.T) {
	b, sent := exactBooks()
	b.broken = errors.New("unreadable")
	if _, err := judge(t.Context(), b, b, testSeed, testAccounts, sent); !errors.Is(err, b.broken) {
		t.Error(err)
	}
}
