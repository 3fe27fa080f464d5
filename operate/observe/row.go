// Package observe judges what a consumer without a fence has noted of its own transactions, through
// the function epochfence.observe in PostgreSQL or the table epochfence_observed in SQLite. It
// finds messages that were applied twice and why, gaps, reorderings, and the transactions that a fence would
// have refused. It reads no database: the rows come from the command.
package observe

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Row is what one committed transaction noted of one partition.
type Row struct {
	ID         int64 // ascends as rows were noted
	At         time.Time
	Group      string
	Topic      string
	Number     int64 // of the partition
	First      int64 // offset of the first message, and of the last
	Last       int64
	Generation int64 // -1: not known
	Process    string
	IDs        []int64 // hashes of the ids that producers give messages; may be empty
	UnreadIDs  bool    // it has ids that could not be read
	Caught     int64   // messages that a dedupe table had

	// Tx is the id of the transaction. Zero means that it is not known, and that rows were noted in the order of
	// the commits.
	Tx       uint64
	Snapshot Snapshot // of the moment at which the row was noted
}

// Snapshot tells which transactions had not committed at a moment.
type Snapshot struct {
	Min, Max uint64 // all below Min had ended, and none from Max on
	Open     []uint64
}

// ParseSnapshot reads PostgreSQL's text of a pg_snapshot.
func ParseSnapshot(s string) (Snapshot, error) {
	var all []uint64
	for _, n := range strings.FieldsFunc(s, func(r rune) bool { return r == ':' || r == ',' }) {
		x, err := strconv.ParseUint(n, 10, 64)
		if err != nil {
			return Snapshot{}, fmt.Errorf("observe: %q is no snapshot", s)
		}
		all = append(all, x)
	}
	if len(all) < 2 {
		return Snapshot{}, fmt.Errorf("observe: %q is no snapshot", s)
	}
	return Snapshot{Min: all[0], Max: all[1], Open: all[2:]}, nil
}

func (s Snapshot) hadEnded(tx uint64) bool {
	return tx < s.Min || tx < s.Max && !slices.Contains(s.Open, tx)
}

// partition names the partition of a row.
func (r Row) partition() string { return fmt.Sprintf("%s/%s/%d", r.Group, r.Topic, r.Number) }

// exact reports whether IDs[i] is the id of the message at First + i.
func (r Row) exact() bool { return int64(len(r.IDs)) == r.Last-r.First+1 }

// Kind is a way in which a message can be applied twice.
type Kind string

// The kinds.
const (
	SameProcess Kind = "same process" // the process that had applied it got it again
	SecondOwner Kind = "second owner" // two processes believed that the partition was theirs
	Redelivered Kind = "redelivered"  // another process got what the first had applied: the offset was not committed, or reset
	Producer    Kind = "producer"     // two messages have one id
)

// Kinds are all kinds, as a report lists them.
var Kinds = []Kind{SameProcess, SecondOwner, Redelivered, Producer}

// Reason is why a fence would refuse a transaction.
type Reason string

// The reasons.
const (
	Stale   Reason = "stale"        // another process had a later generation
	Applied Reason = "applied"      // some of its messages were applied
	Order   Reason = "out of order" // a later message was applied
)

// Reasons are all reasons, as a report lists them.
var Reasons = []Reason{Stale, Applied, Order}

// Report is the judgement of rows.
type Report struct {
	Transactions int64     `json:"transactions"`
	Unit         string    `json:"unit"` // of Transactions and Refused: "transaction", or "row" if rows have no Tx
	Logs         []string  `json:"logs"` // GROUP/TOPIC
	Partitions   int64     `json:"partitions"`
	Processes    int64     `json:"processes"`
	UnreadIDs    int64     `json:"unread_ids,omitzero"` // rows with ids that could not be read
	First        time.Time `json:"first"`
	Last         time.Time `json:"last"`

	Repeated     map[Kind]int64 `json:"repeated"`      // messages, by kind
	Caught       int64          `json:"caught"`        // of these, by a dedupe table
	AppliedTwice int64          `json:"applied_twice"` // the others
	Missing      int64          `json:"missing"`       // offsets between the first and the last of a partition that nobody applied
	Gaps         int64          `json:"gaps"`          // the places where they are
	Reordered    int64          `json:"reordered"`     // messages that were first applied after a later one

	Refused  map[Reason]int64 `json:"refused"`  // transactions that a fence would have refused
	Refusals []Refusal        `json:"refusals"` // each of them
	Episodes []Episode        `json:"episodes"` // in the order of partitions and times
}

// Episode is a series of transactions that repeated messages in one way.
type Episode struct {
	Kind         Kind      `json:"kind"`
	Partition    string    `json:"partition"`
	From         int64     `json:"from"` // the first offset, and the last
	To           int64     `json:"to"`
	Messages     int64     `json:"messages"`
	Transactions int64     `json:"transactions"` // of the process that repeated them
	Before       string    `json:"before"`       // the process that had applied them
	Process      string    `json:"process"`      // the one that repeated them
	First        time.Time `json:"first"`        // when they were repeated
	Last         time.Time `json:"last"`

	// Of a second owner: the time in which both processes believed that they owned the partition, as far as rows
	// prove it.
	BothFrom  time.Time `json:"both_from,omitzero"`
	BothUntil time.Time `json:"both_until,omitzero"`

	row int // the last one
}

// Refusal is the part of a transaction, in one partition, that a fence would have refused.
type Refusal struct {
	Partition  string    `json:"partition"`
	At         time.Time `json:"at"`
	Process    string    `json:"process"`
	Generation int64     `json:"generation"`
	From       int64     `json:"from"`
	To         int64     `json:"to"`
	Reason     Reason    `json:"reason"`
	Position   int64     `json:"position"` // of the fence
}
