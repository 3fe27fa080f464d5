package natssource

import (
	"errors"
	"fmt"

	"github.com/epochfence/epochfence/consumer"
)

var (
	errTaken       = errors.New("the lease is no longer ours in the bucket")
	errRanOut      = fmt.Errorf("%w: the bucket has acknowledged no renewal for nine tenths of its TTL", consumer.ErrLeaseExpired)
	errOtherStream = errors.New("the stream was deleted and created again")
)
