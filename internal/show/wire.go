package show

import (
	"fmt"
	"strings"
)

// Point is a place in a worker's work on one transaction, where an incident can
// strike it.
type Point string

// The three places where processes are caught in earnest: with messages in
// hand and nothing written, with everything written and nothing committed, and
// with the effects committed while the source has not been told.
const (
	BeforeWrites Point = "before its SQL"
	AfterWrites  Point = "after its SQL, the transaction open"
	AfterCommit  Point = "after its transaction's commit, before the offsets'"
)

// Span is what one transaction has in hand of one partition: the offsets from
// From up to, not including, To.
type Span struct {
	Partition int32 `json:"p"`
	From      int64 `json:"from"`
	To        int64 `json:"to"`
}

// Work is what one transaction has in hand.
type Work []Span

// String names the first message of each partition, as "0/17, 3/4".
func (w Work) String() string {
	parts := make([]string, len(w))
	for i, s := range w {
		parts[i] = fmt.Sprintf("%d/%d", s.Partition, s.From)
	}
	return strings.Join(parts, ", ")
}

// What a worker can report.
const (
	reportHolds   = "holds"   // it has a partition now
	reportReached = "reached" // it stands at the point it was told to stop at
	reportApplied = "applied" // a transaction has committed
	reportStale   = "stale"   // a transaction was refused because its claim was stale
	reportFailed  = "failed"  // a transaction was given up for another reason
	reportLate    = "late"    // the source refused an offset after the effects were committed
)

// report is a line from a worker.
type report struct {
	Kind      string `json:"kind"`
	Partition int32  `json:"p,omitempty"`
	Point     Point  `json:"point,omitempty"`
	Work      Work   `json:"work,omitempty"`
	Messages  int    `json:"n,omitempty"`
	Text      string `json:"text,omitempty"`
}

// What a worker can be told.
const (
	orderStopAt = "stop at"
	orderGo     = "go"
)

// order is a line to a worker. The first line is its configuration.
type order struct {
	Do    string `json:"do"`
	Point Point  `json:"point,omitempty"`
}
