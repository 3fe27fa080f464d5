package main

import (
	"errors"
	"fmt"
	"os"
	"slices"
)

var errDoubled = errors.New("some were applied more than once")

// atLeastOnce are the variants without a guard that read as members of a group. On a
// machine that is starved for a while they lose their partitions, and apply again what they
// had not committed. That is what they are like, and no fault of the run.
var atLeastOnce = []string{"kafka/set", "kafka/each", "kafka/piped", "kafka/kafka-go", "nats/set"}

// attempts is how often such a variant is tried before the machine is held to be unfit.
const attempts = 4

// undoubled runs a variant, again where it is one without a guard and has applied
// messages twice: a time that includes some of the work twice compares with nothing. It
// says how often that was. Whatever else goes wrong, or with another variant, is an error
// at once.
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
