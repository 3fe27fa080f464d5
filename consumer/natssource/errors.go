package natssource

import "errors"

var (
	errTaken       = errors.New("the lease is no longer ours in the bucket")
	errRanOut      = errors.New("the bucket has acknowledged no renewal for nine tenths of the lease's TTL")
	errOtherStream = errors.New("the stream was deleted and created again")
)
