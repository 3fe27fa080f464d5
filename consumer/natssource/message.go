package natssource

import (
	"slices"

	"github.com/nats-io/nats.go"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
)

// message is a JetStream message as handlers see it. Its value is not copied.
func (r *reader) message(m *nats.Msg, meta *nats.MsgMetadata) consumer.Message {
	return consumer.Message{
		Partition: r.p, Offset: epoch.Offset(meta.Sequence.Stream),
		Key: []byte(m.Subject), Value: m.Data, Headers: headers(m.Header), Time: meta.Timestamp,
	}
}

// headers puts a message's headers in order: by key, and under one key as they
// were sent. nats.go keeps no order among keys, and has none of a block that it
// cannot parse.
func headers(sent nats.Header) []consumer.Header {
	var hs []consumer.Header
	for key, values := range sent {
		for _, v := range values {
			hs = append(hs, consumer.Header{Key: key, Value: []byte(v)})
		}
	}
	slices.SortStableFunc(hs, func(a, b consumer.Header) int {
		switch {
		case a.Key < b.Key:
			return -1
		case a.Key > b.Key:
			return 1
		}
		return 0
	})
	return hs
}

// size is how many bytes a message was sent with.
func size(m consumer.Message) int {
	n := len(m.Key) + len(m.Value)
	for _, h := range m.Headers {
		n += len(h.Key) + len(h.Value)
	}
	return n
}
