package epoch

import (
	"context"
	"errors"
	"fmt"
)

// Looker is implemented by a [Sink] that reads many fences at about the cost of one. Like
// [Sink.Fence], Look must not read a replica: a consumer takes an older fence for a lost claim.
type Looker interface {
	// Look returns the committed fences of ps that exist.
	Look(ctx context.Context, ps []Partition) (Fences, error)
}

// Look returns the committed fences of ps that exist: by [Looker], or one by one where the sink
// does not implement it.
func Look[TX any](ctx context.Context, sink Sink[TX], ps []Partition) (Fences, error) {
	if l, ok := As[Looker](sink); ok {
		return l.Look(ctx, ps)
	}
	found := Fences{}
	for _, p := range ps {
		f, err := sink.Fence(ctx, p)
		if errors.Is(err, ErrMissing) {
			continue
		}
		if err != nil {
			return nil, err
		}
		found[p] = f
	}
	return found, nil
}

// Replaceable is implemented by a [Sink] that notices when another server has taken its database
// over. The consumer finds out about any other sink by looking at its fences.
type Replaceable interface {
	// Replaced returns a channel that is closed once the sink notices that another server has
	// taken the database over, such as a promoted standby, which may lack the last commits. A
	// nil channel says that it does not notice.
	Replaced() <-chan struct{}
}

// Replaced returns the channel of a [Replaceable], and nil for any other sink.
func Replaced[TX any](sink Sink[TX]) <-chan struct{} {
	if r, ok := As[Replaceable](sink); ok {
		return r.Replaced()
	}
	return nil
}

// Holding is implemented by a [Sink] whose transactions can depend on a claim and move no
// position. The outbox's relay needs it.
type Holding[TX any] interface {
	// CommitHeld runs apply in a transaction that commits only if the fence of h's
	// partition still carries h's claim. It is for work that goes with a partition
	// and not with its messages, such as an outbox's relay: it compares no position
	// and moves none.
	//
	// When it returns nil, all writes of apply are committed, and no later
	// claim of the partition was swapped in before that. So whatever is committed
	// under a claim, by Commit or CommitHeld, is committed before the next claim of
	// the partition is swapped in.
	// Between transactions of one claim there is no order: a Commit of the same
	// partition, and other calls of CommitHeld, may run and commit beside it, where
	// the database allows it. What they must not do at the same time they have to
	// settle between themselves, by locks or constraints of the database. A Claim of
	// the partition waits until the transaction has ended, or ends it, and one that
	// comes before the check makes the transaction stale.
	//
	// A refusal is a [*StaleError], for the zero claim too, or a [*MissingError],
	// and never a [*MovedError]. Otherwise it is like Commit, with its errors and what
	// they mean.
	CommitHeld(ctx context.Context, h Hold, apply func(ctx context.Context, tx TX) error) error
}

// CommitHeld calls [Holding.CommitHeld], or returns an error if the sink does not implement it.
func CommitHeld[TX any](ctx context.Context, sink Sink[TX], h Hold, apply func(ctx context.Context, tx TX) error) error {
	if s, ok := As[Holding[TX]](sink); ok {
		return s.CommitHeld(ctx, h, apply)
	}
	return fmt.Errorf("epoch: commit under the claim of %s: the sink moves a position in each transaction", h.Partition)
}

// As returns the first T among sink and the sinks that it wraps. A sink that wraps another
// one has a method Unwrap() Sink[TX].
func As[T any, TX any](sink Sink[TX]) (T, bool) {
	for sink != nil {
		if t, ok := sink.(T); ok {
			return t, true
		}
		w, ok := sink.(interface{ Unwrap() Sink[TX] })
		if !ok {
			break
		}
		sink = w.Unwrap()
	}
	var none T
	return none, false
}

// Bounds limit what one transaction of a [Sink] can hold. Zero means no limit.
type Bounds struct {
	Partitions int // advances of a Commit
	Messages   int // calls of a Commit, or messages that a call for many has
}

// Bounded is implemented by a [Sink] whose transactions are limited by number. One whose limit is
// another, such as bytes, returns [ErrTooLarge].
type Bounded interface {
	// Bounds returns the bounds. They do not change.
	Bounds() Bounds
}

// BoundsOf returns the bounds of a sink: by [Bounded], or else one partition for a sink that is
// not [Transactional], and none for one that is.
func BoundsOf[TX any](sink Sink[TX]) Bounds {
	if b, ok := As[Bounded](sink); ok {
		return b.Bounds()
	}
	if sink.Guarantee() < Transactional {
		return Bounds{Partitions: 1}
	}
	return Bounds{}
}
