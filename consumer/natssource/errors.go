package natssource

import (
	"errors"
	"fmt"

	"github.com/epochfence/epochfence/consumer"
)

var (
	errTaken        = errors.New("the key is no longer ours in the bucket")
	errUnregistered = errors.New("the registration of this member is no longer in the bucket")
	errRanOut       = fmt.Errorf("%w: the bucket has acknowledged no renewal of this member for nine tenths of the lease's TTL", consumer.ErrLeaseExpired)
	errOtherStream  = errors.New("the stream was deleted and created again")
)
