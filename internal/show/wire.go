package show

import (
	"fmt"
	"slices"
)

// Point is a place in a worker's work on one transaction, where an incident can
// strike it.
type Point string

// The places where processes are caught in earnest.
const (
	InHand       Point = "in hand"       // messages in hand, the transaction not begun
	BeforeWrites Point = "before writes" // in the transaction, before its first statement
	AfterWrites  Point = "after writes"  // in the transaction, after its last statement
	AfterCommit  Point = "after commit"  // the effects committed, the source not told

	// Unlocked is BeforeWrites at a moment when nothing else in the process
	// writes either. It is for a database with one write lock: nobody could continue
	// if a process were frozen with it.
	Unlocked Point = "unlocked"

	// BeforeSend and Answered are for effects outside the database: a request
	// that is about to leave, and one that was answered but not yet recorded.
	// Nothing in the process writes then, as with Unlocked.
	BeforeSend Point = "before a request"
	Answered   Point = "after an answer"
)

// phrase says where p is, after what was in hand.
func (p Point) phrase() string {
	switch p {
	case AfterWrites:
		return " after its SQL"
	case BeforeSend:
		return " before its request"
	case Answered:
		return " after its answer"
	default:
		return ""
	}
}

// Span is what one transaction has in hand of one partition: the offsets from
// From up to, not including, To.
type Span struct {
	Partition int32 `json:"p"`
	From      int64 `json:"from"`
	To        int64 `json:"to"`
}

// Work is what one transaction has in hand.
type Work []Span

// moves reports whether a position moves with it.
func (w Work) moves() bool {
	return slices.ContainsFunc(w, func(s Span) bool { return s.To > s.From })
}

// What a worker can report.
const (
	reportHolds   = "holds"   // it has a partition now
	reportArmed   = "armed"   // it has taken the order to stop, or not to
	reportReached = "reached" // it stands at the point it was told to stop at
	reportApplied = "applied" // a transaction has committed
	reportCounted = "counted" // and had so many messages of a partition
	reportStale   = "stale"   // a transaction was refused because its claim was stale
	reportDoubt   = "doubt"   // a transaction's connection was lost before its commit was acknowledged
	reportFailed  = "failed"  // a transaction was given up for another reason
	reportLate    = "late"    // the source refused what it was told after the effects were committed
	reportReady   = "ready"   // a helper can be reached
	reportServes  = "serves"  // a worker's status page can be reached
	reportSent    = "sent"    // a request that a worker was stopped at was answered
	reportRefused = "refused" // a request was refused because its epoch was stale
)

// report is a line from a worker.
type report struct {
	Kind      string `json:"kind"`
	Partition int32  `json:"p,omitempty"`
	Number    int64  `json:"number,omitempty"` // of its ownership
	Point     Point  `json:"point,omitempty"`
	Work      Work   `json:"work,omitempty"`
	Subject   string `json:"subject,omitempty"` // what the request in hand is about
	Messages  int    `json:"n,omitempty"`
	Answers   int    `json:"answers,omitempty"`
	Text      string `json:"text,omitempty"`
}

// What a worker can be told.
const (
	orderStopAt = "stop at" // a point of the next transaction, "" for none
	orderGo     = "go"      // on from there
	orderServe  = "serve"   // a status page
)

// inHand names what the worker has: what its request is about, or its first
// message, as partition/offset.
func (r report) inHand() string {
	switch {
	case r.Subject != "":
		return r.Subject
	case len(r.Work) > 0:
		return fmt.Sprintf("%d/%d", r.Work[0].Partition, r.Work[0].From)
	default:
		return "nothing"
	}
}

// order is a line to a worker. The first line is its configuration.
type order struct {
	Do    string `json:"do"`
	Point Point  `json:"point,omitempty"`
}
