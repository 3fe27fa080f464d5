package stock

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"

	"github.com/epochfence/epochfence/consumer"
)

// Reservation is the value of a message: a quantity of an item.
type Reservation struct {
	ID       int64  `json:"id"`
	Item     string `json:"item"`
	Quantity int64  `json:"quantity"`
}

func parse(m consumer.Message) (r Reservation, err error) {
	if err := json.Unmarshal(m.Value, &r); err != nil {
		return r, consumer.Permanent(fmt.Errorf("reservation: %w", err)) // a retry cannot help
	}
	return r, nil
}

const initial = 1_000_000

// catalogue returns the number of items: enough for each partition to have some.
func catalogue(partitions int) int { return max(1000, 8*partitions) }

func itemName(n int) string { return fmt.Sprintf("item-%05d", n) }

func reservation(seed uint64, i, items int) Reservation {
	r := rand.New(rand.NewPCG(seed, uint64(i)))
	return Reservation{ID: int64(i), Item: itemName(r.IntN(items)), Quantity: 1 + r.Int64N(5)}
}

func unknown(item string) error {
	return consumer.Permanent(fmt.Errorf("reservation: there is no item %q", item))
}
