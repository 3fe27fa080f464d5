package operate

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"time"

	"github.com/epochfence/epochfence/epoch"
)

// This file has the small store that a sink keeps for operators beside its fences: rows of a kind. What the
// rows mean is decided here, once for all sinks: rows.go has their content, records.go what consumers do
// with them, and admin.go what operators do.

// Kind is what a row is about.
type Kind string

const (
	// KindEntry is an entry of the audit log. It is written once. Sinks delete entries after 90 days, and
	// those that no operator caused once there are about 200,000 newer entries.
	KindEntry Kind = "entry"

	// KindLetter is a dead letter.
	KindLetter Kind = "dead-letter"

	// KindProcess is the sign of life of a process.
	KindProcess Kind = "process"

	// KindOutbox is an entry of the outbox, in a sink that has one. Handlers add it, through an outbox.Store
	// over the sink's transactions. [OutboxEntry.Row] has what its fields are.
	KindOutbox Kind = "outbox"
)

// Row is what a sink keeps for operators about one thing. What operators query by hand is a field, and
// a column in a database. The rest is in Body.
//
// As JSON, a row has short names and leaves out what is not set. Stores of items keep it so.
type Row struct {
	Kind Kind `json:"kind"`

	// ID numbers rows of a kind in the order in which they were written. The sink sets it. It is 0 for a
	// process.
	ID int64 `json:"id,omitempty"`

	// Name is the Run of a process, the id of an entry's claim, and the idempotency key of what is in the
	// outbox. Dead letters have none.
	Name string `json:"name,omitempty"`

	Partition epoch.Partition `json:"partition"` // of a process the group alone
	Epoch     epoch.Epoch     `json:"epoch,omitempty"`
	Offset    epoch.Offset    `json:"offset"` // of the message; of an entry the position before

	// State is the kind of an entry's decision. Of a dead letter it says what became of a replay: see
	// the constants. It is empty for a process.
	State string `json:"state,omitempty"`

	Text string `json:"text,omitempty"` // the reason, the error, or the problems, at most 4,000 bytes
	By   string `json:"by,omitempty"`   // the operator, the name of a process, or the Key in the outbox

	// At is the time of the first write, Changed that of the last, and Now that of the read, by the
	// sink's clock. Role is the database user that was connected at the first. The sink sets them.
	At      time.Time `json:"at,omitzero"`
	Changed time.Time `json:"changed,omitzero"`
	Now     time.Time `json:"-"`
	Role    string    `json:"role,omitempty"`

	// Revision counts the changes of a dead letter, and the signs of a process from 1 on. The sink sets it.
	Revision int64 `json:"revision,omitempty"`

	Body json.RawMessage `json:"body,omitempty"` // a few kilobytes at most

	// Key, Value and Headers are the content of a dead letter's message, and Value and Headers that of what is
	// in the outbox, with the whole URL as Text. nil is none. Headers are JSON.
	Key     []byte `json:"key,omitzero"`
	Value   []byte `json:"value,omitzero"`
	Headers []byte `json:"headers,omitzero"`
}

// The states of a dead letter: its replay is requested, was withdrawn, or has failed. The State is empty
// before the first request. A deferred one is no dead letter yet: its replay is requested for a time, [Row.Delay] after
// its last change.
const (
	StateRequested = "requested"
	StateWithdrawn = "withdrawn"
	StateFailed    = "failed"
	StateDeferred  = "deferred"
)

// Change is a row as it is to be.
//
// An entry, and a dead letter without an ID, is added. A dead letter with an ID replaces the State, Text,
// By and Body of the row with this ID and Revision, or deletes it. If there is no such row, nothing is
// written, and the error is [ErrRowChanged]. A process replaces the row of its Name, of which At stays, or
// deletes it: the row of this Revision, and if there is another one none, or whatever it is if Revision is 0. What is in the outbox under this ID, Partition and Name gets the State
// [StateRequested], or is deleted, and otherwise the error is the same.
type Change struct {
	Row
	Remove bool
}

// ErrRowChanged is returned if a row that is to be changed is not there any more, or has changed since it
// was read. Nothing was written.
var ErrRowChanged = errors.New("it has changed since it was read")

// RowQuery selects rows of a kind. A field that is not set selects all.
type RowQuery struct {
	Kind Kind

	ID        int64
	Name, By  string
	Partition *epoch.Partition
	Filter    // its Paused does not count
	Number    *int32
	States    []string

	After, Before int64     // IDs above After, and below Before
	Until         time.Time // rows whose At is this time or earlier

	Newest  bool // the highest IDs first, otherwise the lowest
	Limit   int  // of rows; 0: none
	Content bool // with Key, Value and Headers, and the whole URL of what is in the outbox
}

// Selects reports whether q, without its limit, selects the row.
func (q RowQuery) Selects(r Row) bool {
	return r.Kind == q.Kind && (q.ID == 0 || r.ID == q.ID) && (q.Name == "" || r.Name == q.Name) && (q.By == "" || r.By == q.By) &&
		(q.Partition == nil || r.Partition == *q.Partition) &&
		(q.Group == "" || r.Partition.Group == q.Group) && (q.Topic == "" || r.Partition.Topic == q.Topic) &&
		(q.Number == nil || r.Partition.Number == *q.Number) && (len(q.States) == 0 || slices.Contains(q.States, r.State)) &&
		(q.After == 0 || r.ID > q.After) && (q.Before == 0 || r.ID < q.Before) && (q.Until.IsZero() || !r.At.After(q.Until))
}

// Page returns those of all that q selects, in its order and up to its limit, and without their content unless q
// wants it. It is for sinks that read all rows of a kind.
func (q RowQuery) Page(all []Row) (found []Row) {
	for _, r := range all {
		if q.Selects(r) {
			if !q.Content {
				r.Key, r.Value, r.Headers = nil, nil, nil
			}
			found = append(found, r)
		}
	}
	slices.SortStableFunc(found, func(a, b Row) int { return cmp.Compare(a.ID, b.ID) })
	if q.Newest {
		slices.Reverse(found)
	}
	if q.Limit > 0 && len(found) > q.Limit {
		found = found[:q.Limit]
	}
	return found
}

// Rows is what a sink lets consumers and operators do with rows. Methods are safe for concurrent use.
// Errors say what the sink did, on which rows, and wrap those of package epoch.
type Rows interface {
	// Rows returns the rows that q selects.
	Rows(ctx context.Context, q RowQuery) ([]Row, error)

	// Write makes the changes in one transaction. A sink whose guarantee is [epoch.PerItem] makes them
	// in their order, and stops at the first that fails.
	Write(ctx context.Context, cs ...Change) error
}

// Ledger is implemented by an [epoch.Sink] that operators can work with. A consumer finds it with
// [epoch.As], and uses it through [RecordsOf].
type Ledger[TX any] interface {
	Rows

	// WriteIn makes changes in tx, a transaction of Commit or CommitHeld, also if the handler has undone its own
	// writes by now. It refuses those of a partition that tx neither advances nor holds. [ErrRowChanged] may come
	// from the commit.
	WriteIn(ctx context.Context, tx TX, cs ...Change) error

	// Requests returns what is requested of the owners of ps: a number that changes with each [Act],
	// and the first dead letters of each partition that are wanted by the sink's clock ([Row.IsWanted]), with their
	// content, at most [ReplaysEach] of a partition and [ReplaysMost] in all. It is cheap if there are none: an owner
	// calls it every 2 to 3 seconds.
	Requests(ctx context.Context, ps []epoch.Partition) (acts int64, letters []Row, err error)
}

// The limits of the dead letters in an answer of [Ledger.Requests].
const (
	ReplaysEach = 8
	ReplaysMost = 32
)

// Admin is what a sink lets operators do, which may be the same type as its [Ledger]. [On] makes an [Operator] of it.
type Admin interface {
	Rows
	epoch.Looker

	// Partitions returns the partitions that f selects, in key order, or p alone if it is not nil: none if it
	// has no fence.
	Partitions(ctx context.Context, f Filter, p *epoch.Partition) ([]Partition, error)

	// Act carries out a in one transaction with its entry in the audit log, and returns the new
	// fence. It sets a.At first, and takes the fence's lock ahead of owners or by chance: behind two busy owners
	// in a fair queue, what the operator has seen has always moved. It ends open transactions of the claim that it replaces, if the database can do that.
	// It returns the errors of [Act.Apply].
	Act(ctx context.Context, a Act) (epoch.Fence, error)
}
