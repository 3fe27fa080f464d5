package cassink

import (
	"context"
	"time"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/operate"
)

// Replays reports whether a transaction moves no position.
func Replays(tx *Tx) bool { return tx.goal.From == tx.goal.To }

// First is the first message that a transaction applies.
func First(tx *Tx) epoch.Message {
	return epoch.Message{Partition: tx.goal.Partition, Offset: tx.goal.From, Mark: epoch.NoMark}
}

// RideLess has a sink write the item of the lists as soon as there is something to write.
func RideLess(s *Sink) { s.mostRiding = 0 }

// FillDeferred lists as many deferred messages as there may be, of which nothing is there, due at a time. It returns what
// makes room for one.
func FillDeferred(ctx context.Context, s *Sink, p epoch.Partition, at time.Time) (room func() error, err error) {
	err = replace(ctx, s.store, s.keys.requests(), func(all *requests) error {
		for n := range int64(mostDeferred - len(all.Deferred)) {
			all.Deferred = append(all.Deferred, due{requested{p, n + 1}, at})
		}
		return nil
	})
	return func() error { return s.request(ctx, operate.Row{Partition: p, ID: 1}, false) }, err
}

// SetDue sets the time from which all are due that are listed as deferred.
func SetDue(ctx context.Context, s *Sink, at time.Time) error {
	return replace(ctx, s.store, s.keys.requests(), func(all *requests) error {
		for i := range all.Deferred {
			all.Deferred[i].At = at
		}
		return nil
	})
}

// ForgetDeferred empties the list of what is deferred.
func ForgetDeferred(ctx context.Context, s *Sink) error {
	return replace(ctx, s.store, s.keys.requests(), func(all *requests) error {
		all.Deferred = nil
		return nil
	})
}

// SetLastEntry has a fence say that an entry had this id.
func SetLastEntry(ctx context.Context, s *Sink, p epoch.Partition, id int64) error {
	_, err := s.change(ctx, p, func(r *record) error {
		r.LastEntry = id
		return nil
	})
	return err
}
