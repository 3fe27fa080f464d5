package epoch_test

import (
	"errors"
	"fmt"

	"github.com/epochfence/epochfence/epoch"
)

// The protocol as values: A claims a partition, B claims it from A, and what A
// commits then is refused. A sink keeps such fences in a database.
func ExampleFences() {
	orders := epoch.Partition{Group: "billing", Topic: "orders", Number: 3}
	origin := epoch.Origin{Partition: orders, Log: "log-1", Source: "broker-1"}
	fences := epoch.Fences{}
	_ = fences.Seed([]epoch.Start{{Origin: origin}})
	claim := func(generation int64) epoch.Fence {
		seen, _ := fences.Read(orders)                               // READ
		lease := epoch.Lease{Origin: origin, Generation: generation} // CONFIRM, by the source
		held, _ := fences.Claim(seen, epoch.NewClaim(lease))         // SWAP
		return held
	}

	a := claim(7) // the group is at generation 7
	err := fences.Advance([]epoch.Advance{{Partition: orders, Claim: a.Claim, From: 0, To: 100}})
	fmt.Println("A:", a.Epoch, err)

	b := claim(8) // A is frozen, and the group gives the partition to B
	fmt.Println("B:", b.Epoch, "continues at", b.Next)

	err = fences.Advance([]epoch.Advance{{Partition: orders, Claim: a.Claim, From: 100, To: 200}})
	fmt.Println("A is refused:", errors.Is(err, epoch.ErrStale))
	// Output:
	// A: 7 <nil>
	// B: 8 continues at 100
	// A is refused: true
}
