package natssource

import (
	"slices"

	"github.com/nats-io/nats.go"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
)

// message converts a JetStream message. It does not copy the value.
func (r *reader) message(m *nats.Msg, meta *nats.MsgMetadata) consumer.Message {
	return consumer.Message{
		Partition: r.p, Offset: epoch.Offset(meta.Sequence.Stream),
		Key: []byte(m.Subject), Value: m.Data, Headers: headers(m.Header), Time: meta.Timestamp,
	}
}

// headers sorts headers by key and keeps the order of the values of a key. nats.go does not keep
// the order of keys, and has no headers of a block that it cannot parse.
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

func size(m consumer.Message) int {
	n := len(m.Key) + len(m.Value)
	for _, h := range m.Headers {
		n += len(h.Key) + len(h.Value)
	}
	return n
}
