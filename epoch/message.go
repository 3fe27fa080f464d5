package epoch

import (
	"context"
	"time"
)

// Message is one message of a partition, as a source read it. Users know it as consumer.Message. It
// is defined here so that a sink, which does not import consumer, can store one. The slices belong
// to the message and must not be changed.
type Message struct {
	Partition Partition
	Offset    Offset
	Key       []byte
	Value     []byte
	Headers   []Header
	Time      time.Time

	// Mark is the mark of the position after the message, see [Position]. A source sets it.
	Mark Mark

	// Context is the context that the source's client has put on the message, for a tracer's span
	// for instance, or nil. Package consumer passes its values on in the context of the handler,
	// and nothing else of it.
	Context context.Context

	// Under is the fence as it was claimed. Its position may have moved since. The consumer sets
	// Under in the messages that handlers get. It must not be changed.
	Under *Fence

	// Replay is the id of the dead letter if the message is replayed, and otherwise zero. A message
	// that is replayed comes after messages with higher offsets.
	Replay int64
}

// Header is one header of a message. Keys may repeat and keep their order.
type Header struct {
	Key   string
	Value []byte
}
