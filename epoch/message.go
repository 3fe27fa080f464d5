package epoch

import "time"

// Message is one message of a partition, as a source read it. It is defined
// here so that a sink, which knows nothing of sources, can store one; users
// know it as consumer.Message. The slices belong to the message and must not
// be changed.
type Message struct {
	Topic     string
	Partition int32
	Offset    Offset
	Key       []byte
	Value     []byte
	Headers   []Header
	Time      time.Time

	// LeaderEpoch is the leader epoch the message was written under, -1 where
	// the source has none.
	LeaderEpoch int32
}

// Header is one header of a message. Keys may repeat and keep their order.
type Header struct {
	Key   string
	Value []byte
}
