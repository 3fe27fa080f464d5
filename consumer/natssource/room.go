package natssource

import (
	"encoding/json"
	"fmt"
	"math"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/epochfence/epochfence/epoch"
)

// This file decides whether the bucket has room for the keys of the group.

type needs struct{ message, messages, bytes int }

const (
	beside     = 200 // bytes of a message beside its value: subject, headers, and what the server adds
	fewMembers = 4   // members that a group may have now or had a moment ago
)

// needs returns the room for the keys of this group: a lease and a position for each partition, and
// fewMembers members.
func (s *Source) needs() needs {
	const most = 400 // bytes of a lease, and of a registration beside the streams that it names
	name, partitions, n := 0, 0, needs{message: most}
	for _, l := range s.logs {
		p, mark := position{Next: math.MaxInt64, Epoch: math.MaxInt64, Lag: math.MaxInt64, Owner: s.Name}, epoch.Mark(math.MaxInt64)
		p.Print = &mark
		for n := range l.partitions() {
			if log := l.logID(l.incarnation(), n); len(log) > len(p.Log) {
				p.Log = log
			}
		}
		if data, err := json.Marshal(p); err == nil {
			n.message = max(n.message, len(data))
		}
		name += len(l.stream.Name) + len(`"":2147483647,`)
		partitions += int(l.partitions())
	}
	n.message = max(n.message, most+name) + len(s.Name) + len(s.Group) + beside
	n.messages = 2*partitions + fewMembers
	n.bytes = n.messages * n.message
	n.message = max(n.message, 2<<10) // that natsstore wants
	return n
}

func (n needs) check(c jetstream.StreamConfig) error {
	for _, limit := range []struct {
		has       int64
		need      int
		what, opt string
	}{
		{int64(c.MaxMsgSize), n.message, "bytes in a message", "--max-msg-size"},
		{c.MaxMsgs, n.messages, "messages", "--max-msgs"},
		{c.MaxBytes, n.bytes, "bytes", "--max-bytes"},
	} {
		if limit.has > 0 && limit.has < int64(limit.need) {
			return fmt.Errorf("it has room for %d %s, and this group alone needs %d; lift that with: nats stream edit %s %s=-1",
				limit.has, limit.what, limit.need, c.Name, limit.opt)
		}
	}
	return nil
}
