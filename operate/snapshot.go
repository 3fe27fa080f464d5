package operate

import (
	"context"
	"time"
)

// This file names whoever makes a database keep dead rows. The sink finds them; how old is too old
// is decided by those who show it.

// Snapshots is implemented by a sink whose database keeps dead row versions for as long as
// somebody holds a snapshot. Tables grow meanwhile.
type Snapshots interface {
	// OldestSnapshots returns the oldest snapshot of each kind of holder that there is. It is cheap:
	// a consumer calls it with each sign of life.
	OldestSnapshots(ctx context.Context) ([]Snapshot, error)
}

// Snapshot is a snapshot that is held.
type Snapshot struct {
	Holder       string        // one of the Holders
	Name         string        // application_name of the session or, if empty, its role; the id of the prepared transaction; the name of the slot
	PID          int           // of the server's process; zero without one
	Transactions int64         // how many have begun since it was taken
	Age          time.Duration // of its transaction; zero if this role may not see it, and for a slot
}

// The holders of snapshots, as metrics and tools name them.
const (
	HolderSession  = "session"
	HolderPrepared = "prepared_transaction"
	HolderSlot     = "replication_slot"
)
