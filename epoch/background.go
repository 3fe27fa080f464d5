package epoch

import (
	"context"
	"fmt"
)

// Background is one claim of one partition, for work beside what moves its position: a function of
// consumer.Handlers.Background or of lease.Claimed.Background, such as the relay of an outbox. Its
// methods are safe for concurrent use.
type Background[TX any] interface {
	// Partition returns the claimed partition. Epoch returns the claim's epoch, a fencing token.
	Partition() Partition
	Epoch() Epoch

	// Do runs apply in a transaction that commits only under this claim and applies no message. One
	// call of Do runs at a time for each partition, so apply must not call Do.
	//
	// If apply returns an error, everything is rolled back and Do returns the error. Do does not
	// retry. [ErrStale], [ErrInDoubt] and the sink's other refusals end the claim and the context of
	// the work. Under the next claim, apply can read what was in doubt.
	Do(ctx context.Context, apply func(ctx context.Context, tx TX) error) error

	// Above ends the claim because another system refused its epoch and has seen a higher one. The
	// next claim's epoch is above seen. The lease is confirmed before every claim, so a process that
	// has lost the partition makes none. If seen is below the claim's epoch, Above does nothing. If
	// seen is out of reach, it does nothing and returns an error: seen is higher than [MaxAbove], or
	// more than [MaxStep] epochs away. Then seen has to be lowered in the other system.
	Above(seen Epoch) error

	// Applied receives a value after another transaction under the claim has committed, with messages
	// of the partition, the replay of a dead letter, or the work under a lock. One value may stand for
	// several transactions.
	Applied() <-chan struct{}
}

// CheckAbove returns an error if no claim of p, whose epoch is now, may be made above an epoch that
// another system has seen. Epochs are used up if one receiver with a wrong number can raise them at
// will: a step is limited, and so is the highest value.
func CheckAbove(p Partition, now, seen Epoch) error {
	if seen > MaxAbove || seen-now > MaxStep {
		return fmt.Errorf("claim %s above epoch %d: another system has seen that epoch, which is too high to claim above it: an epoch that was seen elsewhere may be at most %d, and at most %d higher than the epoch of the fence, which is %d; lower the epoch in that system",
			p, seen, MaxAbove, MaxStep, now)
	}
	return nil
}
