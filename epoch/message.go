package epoch

import (
	"context"
	"time"
)

// Message is one message of a partition, as a source read it. It is defined
// here so that a sink, which knows nothing of sources, can store one; users
// know it as consumer.Message. The slices belong to the message and must not
// be changed.
type Message struct {
	Partition Partition
	Offset    Offset
	Key       []byte
	Value     []byte
	Headers   []Header
	Time      time.Time

	// Context is what the source's client had put on the message, such as a tracer's
	// span; nil if nothing. Only its values count. Package consumer hands them on in
	// the context of the handler.
	Context context.Context
}

// Header is one header of a message. Keys may repeat and keep their order.
type Header struct {
	Key   string
	Value []byte
}
