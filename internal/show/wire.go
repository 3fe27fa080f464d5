package show

import (
	"fmt"
	"slices"
)

// Point is a place in a worker's transaction at which an incident can strike.
type Point string

// The points, in their order.
const (
	InHand       Point = "in hand"       // messages in hand, the transaction not begun
	BeforeWrites Point = "before writes" // in the transaction, before its first statement
	AfterWrites  Point = "after writes"  // in the transaction, after its last statement
	AfterCommit  Point = "after commit"  // the effects committed, the source not told

	// Unlocked is BeforeWrites at a moment when nothing else in the process writes. It is for a
	// database with one write lock: a process frozen with that lock would block all others.
	Unlocked Point = "unlocked"

	// BeforeSend and Answered are for effects outside the database: a request that is about to be
	// sent, and one that was answered but not yet recorded. As with Unlocked, nothing in the
	// process writes then.
	BeforeSend Point = "before a request"
	Answered   Point = "after an answer"
)

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

// Span is the part of a partition in one transaction: the offsets in [From, To).
type Span struct {
	Partition int32 `json:"p"`
	From      int64 `json:"from"`
	To        int64 `json:"to"`
}

// Work is the spans of one transaction.
type Work []Span

func (w Work) moves() bool {
	return slices.ContainsFunc(w, func(s Span) bool { return s.To > s.From })
}

const (
	reportHolds   = "holds"   // it has a partition now
	reportArmed   = "armed"   // it has taken a stop order, or its withdrawal
	reportReached = "reached" // it has stopped at its point
	reportApplied = "applied" // a transaction has committed
	reportCounted = "counted" // a committed transaction had so many messages of a partition
	reportStale   = "stale"   // a transaction was refused because its claim was stale
	reportDoubt   = "doubt"   // a transaction's connection was lost before its commit was acknowledged
	reportFailed  = "failed"  // a transaction was given up for another reason
	reportLate    = "late"    // the source refused an offset or ack after the effects were committed
	reportReady   = "ready"   // a helper is ready
	reportServes  = "serves"  // a worker serves its status page
	reportSent    = "sent"    // a request at which a worker was stopped was answered
	reportRefused = "refused" // a request was refused because its epoch was stale
)

type report struct {
	Kind      string `json:"kind"`
	Partition int32  `json:"p,omitempty"`
	Number    int64  `json:"number,omitempty"` // orders reports of ownership; see Holds
	Point     Point  `json:"point,omitempty"`
	Work      Work   `json:"work,omitempty"`
	Subject   string `json:"subject,omitempty"` // of the request in hand
	Messages  int    `json:"n,omitempty"`
	Answers   int    `json:"answers,omitempty"`
	Text      string `json:"text,omitempty"`
}

const (
	orderStopAt = "stop at" // a point of the next transaction, "" for none
	orderGo     = "go"      // continue
	orderServe  = "serve"   // a status page
)

// inHand names the worker's work: the subject of its request, or its first message as
// partition/offset.
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
