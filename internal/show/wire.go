package show

// Point is a place in a worker's work at which an incident can strike.
type Point string

// The points, in their order, as they are displayed.
const (
	InHand      Point = "with messages in hand" // the transaction has not begun
	AfterWrites Point = "after its SQL"         // in the transaction, after its last statement
	AfterCommit Point = "after its commit"      // the source has not been told
	BeforeSend  Point = "before its request"
	Answered    Point = "after its answer" // to a request, not yet recorded; for kills
)

// The outcomes of transactions and requests, as they are displayed.
const (
	Committed = "committed"
	Stale     = "refused as stale" // its claim was
	CutOff    = "cut off"          // its connection was lost before its commit was acknowledged
	Failed    = "failed"
	answered  = "answered"
	Refused   = "refused by the receiver" // its epoch was stale
)

// report says that a worker has stopped at a point, or that a transaction or request has an outcome that is
// of interest. An order to a worker is the point at which to stop, or "" to continue.
type report struct {
	Point   Point  `json:"point,omitempty"`   // where it has stopped, or "" with an outcome
	Text    string `json:"text,omitempty"`    // the subject in hand, or the outcome
	Stopped bool   `json:"stopped,omitempty"` // the outcome is of what was stopped
}
