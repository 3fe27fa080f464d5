package main

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"

	"github.com/epochfence/epochfence/consumer"
)

// Reservation is what a message says: so many of an item, for a customer.
type Reservation struct {
	ID       int64  `json:"id"`
	Item     string `json:"item"`
	Quantity int64  `json:"quantity"`
}

func parse(m consumer.Message) (r Reservation, err error) {
	if err := json.Unmarshal(m.Value, &r); err != nil {
		return r, consumer.Permanent(fmt.Errorf("reservation: %w", err)) // no retry makes it JSON
	}
	return r, nil
}

// initial is how much there is of each item at the start.
const initial = 1_000_000

// catalogue is how many items there are: enough for each partition to have some.
func catalogue(partitions int) int { return max(1000, 8*partitions) }

func itemName(n int) string { return fmt.Sprintf("item-%05d", n) }

// reservation is the i-th of those that seed stands for.
func reservation(seed uint64, i, items int) Reservation {
	r := rand.New(rand.NewPCG(seed, uint64(i)))
	return Reservation{ID: int64(i), Item: itemName(r.IntN(items)), Quantity: 1 + r.Int64N(5)}
}

// unknown is the error for an item that the stock has no line for.
func unknown(item string) error {
	return consumer.Permanent(fmt.Errorf("reservation: there is no item %q", item))
}
