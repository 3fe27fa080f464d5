package natssource

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"math"
	"strings"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/epochfence/epochfence/epoch"
)

// fullError is returned when the bucket has no room for a write. That alone loses no lease, because
// the TTL decides.
type fullError struct {
	stream string
	err    error
}

func (e *fullError) Error() string {
	return fmt.Sprintf("the bucket takes no more: give it room (nats stream edit %s --max-bytes=-1 --max-msgs=-1 --max-msg-size=-1, or the account more storage), "+
		"or remove what is not of a group that runs: %v", e.stream, e.err)
}

func (e *fullError) Unwrap() error { return e.err }

// Codes of nats-server that nats.go does not name.
const (
	codeAccountExceeded jetstream.ErrorCode = 10002
	codeNoResources     jetstream.ErrorCode = 10023
	codeNoMemory        jetstream.ErrorCode = 10028
	codeNoStorage       jetstream.ErrorCode = 10047
	codeStoreFailed     jetstream.ErrorCode = 10077
)

func (b *bucket) full(err error) error {
	switch {
	case hasCode(err, jetstream.JSErrCodeStreamMessageExceedsMaximum, codeAccountExceeded, codeNoResources, codeNoMemory, codeNoStorage),
		hasCode(err, codeStoreFailed) && strings.Contains(err.Error(), " exceeded"): // maximum bytes, messages, or messages per subject
		return &fullError{b.stream, err}
	}
	return err
}

type needs struct{ message, messages, bytes int }

const (
	beside     = 200 // bytes of a message beside its value: subject, headers, and what the server adds
	fewMembers = 4   // members that a group may have now or had a moment ago
)

// needs returns the room for the keys of this group: a lease and a position for each partition, and
// fewMembers members.
func (s *Source) needs() needs {
	most := len(s.newRecord(newMemberID(), rand.Text()).json())
	r := s.memberRecord()
	r.Nonce = rand.Text()
	if data, err := json.Marshal(r); err == nil {
		most = max(most, len(data))
	}
	for _, l := range s.logs {
		p, mark := mirror{Next: math.MaxInt64, Epoch: math.MaxInt64, Lag: math.MaxInt64, Owner: s.owner()}, epoch.Mark(math.MaxInt64)
		p.Print = &mark
		for n := range l.partitions() {
			p.Log = l.logID(l.incarnation(), n)
			if data, err := json.Marshal(p); err == nil {
				most = max(most, len(data))
			}
		}
	}
	n := needs{message: most + len(s.keys.prefix) + beside, messages: 2*len(s.slots) + fewMembers}
	n.bytes = n.messages * n.message
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
