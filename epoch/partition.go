package epoch

import (
	"cmp"
	"strconv"
	"strings"
	"unicode"
)

// This file has the names of partitions and the order in which transactions lock their fences (R4).

// Partition names one ordered stream of messages as one group sees it. Each partition has one
// fence.
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

// String returns "group/topic/number". A group or topic that contains a slash, a quote, a space or
// an unprintable character is quoted as a Go string.
func (p Partition) String() string {
	return readable(p.Group) + "/" + readable(p.Topic) + "/" + strconv.Itoa(int(p.Number))
}

// Names names ps in an error: the first one, and how many more.
func Names(ps []Partition) string {
	switch len(ps) {
	case 0:
		return "no partition"
	case 1:
		return ps[0].String()
	}
	return ps[0].String() + " and " + strconv.Itoa(len(ps)-1) + " more"
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

// Offset is a message's place in its partition.
type Offset int64

// Mark lets a source recognise its log at a position: a log that was truncated below the position
// and has grown again has another mark there. A mark can be the leader epoch of the message before
// the position, or a fingerprint of the time when that message was stored. Only the source
// interprets it.
type Mark int64

// NoMark is the mark of a position for which the source has none.
const NoMark Mark = -1

// Epoch is the fencing token: the number that a sink issues with a claim. It is strictly greater at
// every claim of a partition, in a sink that loses no committed transaction. So a receiver that
// keeps the highest epoch it has seen refuses a process that has lost its claim, once the receiver
// has had a request under a later claim. Zero is no epoch. Issued epochs start at one.
type Epoch int64
