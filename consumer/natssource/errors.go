package natssource

import (
	"errors"
	"fmt"

	"github.com/epochfence/epochfence/cas/natsstore"
	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/lease"
)

// PermissionError is returned when the connection's user lacks a permission that the source needs.
// Its field Subject is the subject that the user may not publish or subscribe to.
type PermissionError = natsstore.PermissionError

var errOtherStream = errors.New("the stream was deleted and created again")

// reasonOf adds the consumer's reason to the error with which a lease was lost.
func reasonOf(err error) error {
	switch {
	case errors.Is(err, lease.ErrExpired):
		return fmt.Errorf("%w: %w", consumer.ErrLeaseExpired, err)
	case errors.Is(err, lease.ErrDrainOverrun):
		return fmt.Errorf("%w: %w", consumer.ErrDrainOverrun, err)
	}
	return err
}
