package kafkasource

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/epochfence/epochfence/consumer/internal/tenures"
	"github.com/epochfence/epochfence/epoch"
)

// idAge is how old the answer may be by which Confirm knows the topic's id. A
// fetch checks it again, by itself.
const idAge = time.Second

// Confirm implements [consumer.Tenure]. It commits the fence's position to the
// group, or again what others had committed before, which the coordinator takes
// from a member of the group only, under its generation.
//
// That alone is not a proof. The coordinator checks the member, not its
// partitions: a process that lost this partition and is still a member, under
// a newer generation, commits it just as well. What closes this is that the
// tenure is looked at again once the answer is here. kgo publishes a generation
// without the partition only after it was given back (eager), or before anyone
// else can have it (cooperative and KIP-848 wait for it to be given back), and
// a new member id ends the tenure, whoever notices first.
//
// Kafka 4.3 and newer take a commit under KIP-848 also with an earlier epoch of the
// member's, down to that at which the partition was assigned to it (KIP-1251). The proof is
// the same: the member had not given the partition back, and since that epoch nobody else
// has had it. A commit for one that was somebody else's after its epoch is refused by all.
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
