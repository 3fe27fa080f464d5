package main

import (
	"errors"
	"fmt"
	"os"
	"slices"
)

var errDoubled = errors.New("some were applied more than once")

// atLeastOnce are the variants without a guard that read as members of a group. On a starved
// machine they lose their partitions and apply uncommitted messages again. That is their nature,
// and no fault of the run.
var atLeastOnce = []string{
	"kafka/set", "kafka/set" + background, "kafka/each", "kafka/each" + background, "kafka/piped", "kafka/kafka-go", "nats/set",
}

// attempts limits the attempts at such a variant before the machine counts as unfit.
const attempts = 4

// undoubled runs a variant. It repeats a variant without a guard that has applied messages twice,
// because its time includes some work twice, and returns the number of repetitions. It returns any
// other error at once.
func undoubled(variant string, once func() (outcome, error)) (o outcome, doubled int, err error) {
	for ; ; doubled++ {
		o, err = once()
		if !errors.Is(err, errDoubled) || !slices.Contains(atLeastOnce, variant) {
			return o, doubled, err
		}
		if doubled == attempts-1 {
			return o, doubled, fmt.Errorf("%w, in each of %d attempts: the machine is too busy to measure on", err, attempts)
		}
		fmt.Fprintf(os.Stderr, "%v: it has no guard, and is run again\n", err)
	}
}
