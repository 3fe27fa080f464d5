package kafkasource

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/epochfence/epochfence/consumer/internal/tenures"
	"github.com/epochfence/epochfence/epoch"
)

// This file makes a lease of the generation that the group confirms (R2, R7). commits.go asks it.

// idAge is the maximum age of the topic's id in Confirm. Each fetch checks the id again.
const idAge = time.Second

// Confirm implements [consumer.Tenure]. It commits the fence's position to the group, or again the
// position that others had committed before. The coordinator accepts a commit only from a member of
// the group, under its generation.
//
// That alone is no proof. The coordinator checks the member and not its partitions: a process that
// has lost this partition and is still a member, under a newer generation, can commit for it too.
// So the tenure is checked again after the answer. kgo publishes a generation without the partition
// only after the partition was given back (eager), or before any other member can have it
// (cooperative and KIP-848 wait until it is given back). A new member id ends the tenure, whoever
// notices it first.
//
// Under KIP-848, Kafka 4.3 and newer also accepts a commit with an earlier epoch of the member,
// back to the epoch at which the partition was assigned to it (KIP-1251). The proof is the same:
// the member has not given the partition back, and nobody else has had it since that epoch. Every
// version refuses a commit for a partition that another member has had after the commit's epoch.
func (t *tenure) Confirm(ctx context.Context, seen epoch.Fence) (epoch.Lease, error) {
	lease, err := t.confirm(ctx, seen)
	if over := t.err(); over != nil {
		err = over // whatever the answer was
	}
	if err != nil {
		return epoch.Lease{}, fmt.Errorf("kafkasource: confirm %s: %w", t.Origin().Partition, err)
	}
	return lease, nil
}

func (t *tenure) confirm(ctx context.Context, seen epoch.Fence) (epoch.Lease, error) {
	if err := t.err(); err != nil {
		return epoch.Lease{}, err
	}
	id, err := t.s.topics.fresh(ctx, t.topic, time.Now().Add(-idAge))
	if err != nil {
		return epoch.Lease{}, err
	}
	origin := t.Origin()
	if id != t.topicID() { // the tenure is being lost for it
		return epoch.Lease{}, tenures.Lost(errOtherTopic)
	}
	if seen.Partition != origin.Partition {
		return epoch.Lease{}, fmt.Errorf("the fence is that of %s", seen.Partition)
	}
	if err := seen.Check(origin); err != nil {
		return epoch.Lease{}, err // its position means nothing here
	}
	if err := t.learn(ctx); err != nil {
		return epoch.Lease{}, err
	}
	t.Compare(seen)
	t.Claims(seen)
	t.warnOtherCommit(seen)
	position := t.toCommit(seen)
	number, err := t.s.commits.confirm(ctx, t, id, position)
	if err != nil {
		return epoch.Lease{}, err
	}
	if number <= 0 {
		return epoch.Lease{}, fmt.Errorf("%w: the group is at generation %d", epoch.ErrNoLease, number)
	}
	t.publishedAs(position)
	return epoch.Lease{Origin: origin, Generation: int64(number), Owner: t.s.owner(t.member)}, nil
}

var errNotJoined = errors.New("the member is not in the group at the moment, ask again")
