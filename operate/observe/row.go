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
