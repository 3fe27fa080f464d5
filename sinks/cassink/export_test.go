package cassink

import "github.com/epochfence/epochfence/epoch"

// Replays reports whether a transaction moves no position.
func Replays(tx *Tx) bool { return tx.advance.From == tx.advance.To }

// First is the first message that a transaction applies.
func First(tx *Tx) epoch.Message {
	return epoch.Message{Partition: tx.advance.Partition, Offset: tx.advance.From, Mark: epoch.NoMark}
}
