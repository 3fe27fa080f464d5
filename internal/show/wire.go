package show

// Point is a place in a worker's work at which an incident can strike.
type Point string

// The points, in their order.
const (
	InHand      Point = "in hand"          // messages in hand, the transaction not begun
	AfterWrites Point = "after writes"     // in the transaction, after its last statement
	AfterCommit Point = "after commit"     // the effects committed, the source not told
	BeforeSend  Point = "before a request" // a request is about to be sent
	Answered    Point = "after an answer"  // a request was answered, and that is not yet recorded; for kills
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

// The outcomes of transactions and requests, as they are displayed.
const (
	Committed = "committed"
	Stale     = "refused as stale" // its claim was
	CutOff    = "cut off"          // its connection was lost before its commit was acknowledged
	Failed    = "failed"
	answered  = "answered"
	Refused   = "refused by the receiver" // its epoch was stale
)

// The kinds of reports.
const (
	reportReached = "reached" // it has stopped at its point
	reportEnded   = "ended"   // a transaction or request has an outcome that is of interest
	reportReady   = "ready"   // it can be reached at an address
)

type report struct {
	Kind    string `json:"kind"`
	Point   Point  `json:"point,omitempty"`
	Text    string `json:"text,omitempty"`    // the subject in hand, the outcome, or the address
	Stopped bool   `json:"stopped,omitempty"` // the outcome is of what was stopped
}

// order is a line to a worker: to stop at a point, or, if that is empty, to continue. The line
// before all orders is its configuration.
type order struct {
	StopAt Point `json:"stop"`
}
