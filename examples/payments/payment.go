package main

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/outbox"
)

// Payment is the value of a message, and the body of the request to the gateway.
type Payment struct {
	ID      int64  `json:"payment"`
	Account string `json:"account"`
	Cents   int64  `json:"cents"`
}

// Receipt is the gateway's answer.
type Receipt struct {
	Charge  int64 `json:"charge"` // its number
	Payment int64 `json:"payment"`
}

func parse(value []byte) (p Payment, err error) {
	if err := json.Unmarshal(value, &p); err != nil {
		return p, consumer.Permanent(fmt.Errorf("payment: %w", err)) // a retry cannot help
	}
	if p.Account == "" || p.Cents <= 0 {
		return p, consumer.Permanent(fmt.Errorf("payment %d: %d cents from account %q", p.ID, p.Cents, p.Account))
	}
	return p, nil
}

// charge returns the request for a payment. Its scope is the account: the payments of an account
// come from one partition, so that their epochs compare.
func (p Payment) charge(gateway string) (outbox.Entry, error) {
	body, err := json.Marshal(p)
	return outbox.Entry{
		Key: p.Account, Scope: p.Account, IdempotencyKey: p.name(),
		URL: gateway + chargesPath, Header: http.Header{"Content-Type": {"application/json"}}, Body: body,
	}, err
}

const chargesPath = "/charges"

func receipt(body []byte, p string) (r Receipt, err error) {
	if err := json.Unmarshal(body, &r); err != nil {
		return r, fmt.Errorf("receipt of %s: %w", p, err)
	}
	if r.Charge <= 0 || paymentName(r.Payment) != p {
		return r, fmt.Errorf("receipt of %s is for another, or without a charge: %s", p, body)
	}
	return r, nil
}

func (p Payment) name() string { return paymentName(p.ID) }

func paymentName(id int64) string { return "payment-" + strconv.FormatInt(id, 10) }

func accountName(n int) string { return fmt.Sprintf("account-%05d", n) }

func payment(seed uint64, i, accounts int) Payment {
	r := rand.New(rand.NewPCG(seed, uint64(i)))
	return Payment{ID: int64(i), Account: accountName(r.IntN(accounts)), Cents: 1 + r.Int64N(50_000)}
}
