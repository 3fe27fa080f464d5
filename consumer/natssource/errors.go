package natssource

import (
	"errors"
	"fmt"

	"github.com/epochfence/epochfence/consumer"
)

var (
	errTaken        = errors.New("the lease is no longer ours in the bucket")
	errRanOut       = errors.New("the bucket has acknowledged no renewal for nine tenths of the lease's TTL")
	errDrainOverrun = errors.New("the partition was revoked and not given back in time")
	errOtherStream  = errors.New("the stream was deleted and created again")
	errEnded        = errors.New("the tenure has ended")
	errReading      = errors.New("natssource: one Read of a tenure at a time")
)

// lost is the cause of a tenure's cancellation.
func lost(why error) error {
	if errors.Is(why, consumer.ErrLost) {
		return why
	}
	return fmt.Errorf("%w: %w", consumer.ErrLost, why)
}
