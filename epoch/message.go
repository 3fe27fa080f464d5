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

	// Mark goes with the position after the message.
	Mark Mark

	// Control marks what a source says about the log, not a message in it: from
	// the message before it up to this offset the partition holds none, and the
	// position may pass. Handlers never see one.
	Control bool
}

// Header is one header of a message. Keys may repeat and keep their order.
type Header struct {
	Key   string
	Value []byte
}
