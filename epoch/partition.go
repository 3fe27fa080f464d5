package epoch

import (
	"cmp"
	"strconv"
	"strings"
	"unicode"
)

// Partition names one ordered stream of messages as one group sees it. It is
// the scope of one fence. It is comparable and may be a map key.
type Partition struct {
	Group  string
	Topic  string
	Number int32
}

// Compare orders partitions by group, topic and number. Sinks lock fences in
// this order, so that transactions over several partitions cannot deadlock.
func (p Partition) Compare(q Partition) int {
	return cmp.Or(
		cmp.Compare(p.Group, q.Group),
		cmp.Compare(p.Topic, q.Topic),
		cmp.Compare(p.Number, q.Number),
	)
}

// String is "group/topic/number". A group or topic that holds a slash, a
// quote, a space or something unprintable is quoted as Go quotes strings.
func (p Partition) String() string {
	return readable(p.Group) + "/" + readable(p.Topic) + "/" + strconv.Itoa(int(p.Number))
}

func readable(name string) string {
	odd := func(r rune) bool {
		return r == '/' || r == '"' || r == unicode.ReplacementChar || unicode.IsSpace(r) || !unicode.IsPrint(r)
	}
	if name == "" || strings.ContainsFunc(name, odd) {
		return strconv.Quote(name)
	}
	return name
}

// Offset is a message's place in its partition. A position is the offset of
// the next message to apply.
type Offset int64

// Mark lets a source recognise its log at a position: a log that was truncated below the
// position and has grown again has another mark there. The leader epoch of the message before
// the position can be one, or a fingerprint of when that message was stored. Only the source
// interprets it.
type Mark int64

// NoMark is the mark of a position for which the source has none.
const NoMark Mark = -1

// Epoch is the fencing token: the number a sink issues with a claim. It is
// strictly greater at every claim of a partition and never reused, so a
// receiver that refuses lower epochs than it has seen refuses every zombie.
// Zero is no epoch; issued epochs start at one.
type Epoch int64
