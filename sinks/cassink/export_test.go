package cassink

import (
	"context"

	"github.com/epochfence/epochfence/epoch"
)

// Replays reports whether a transaction moves no position.
func Replays(tx *Tx) bool { return tx.goal.From == tx.goal.To }

// First is the first message that a transaction applies.
func First(tx *Tx) epoch.Message {
	return epoch.Message{Partition: tx.goal.Partition, Offset: tx.goal.From, Mark: epoch.NoMark}
}

// RideLess has a sink write the item of the lists as soon as there is something to write.
func RideLess(s *Sink) { s.mostRiding = 0 }

// SetLastEntry has a fence say that an entry had this id.
func SetLastEntry(ctx context.Context, s *Sink, p epoch.Partition, id int64) error {
	_, err := s.change(ctx, p, func(r *record) error {
		r.LastEntry = id
		return nil
	})
	return err
}
