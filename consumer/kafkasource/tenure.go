package kafkasource

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"sync"
	"time"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/internal/tenures"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/waits"
)

// This file has what package consumer sees of a partition: its batches, and the lease that the group confirms.
// committed.go and starts.go decide where reading begins.

// tenure implements [consumer.Tenure], under one membership.
type tenure struct {
	topicPartition
	*tenures.State
	tenures.Position
	s      *Source
	member string // the member id that it was granted to
	began  time.Time

	mu     sync.Mutex
	id     [16]byte  // of the topic, zero until it is known
	theirs committed // position that others had committed when the tenure began
}

var _ consumer.Tenure = (*tenure)(nil)

func (s *Source) newTenure(p topicPartition, member string, previous *tenure) *tenure {
	var before *tenures.State
	if previous != nil {
		before = previous.State
	}
	return &tenure{topicPartition: p, State: tenures.NewState(s.base, before), s: s, member: member, began: time.Now()}
}

// run is the tenure's goroutine. It ends when own has returned.
func (t *tenure) run(own func(context.Context, consumer.Tenure)) {
	t.Run(func(ctx context.Context) {
		if t.prepare() {
			own(ctx, t)
		}
		if until := t.GivenUp(); until != nil {
			t.s.hung(t, until)
			return
		}
		if t.Held() {
			t.s.log.Info("gave up the partition; it stays idle until the group moves it", "topic", t.topic, "partition", t.number)
		}
	})
}

// prepare reads the present id of the topic. It returns false if the tenure ended before.
func (t *tenure) prepare() bool {
	ctx, cancel := t.WhileHeld(t.s.base)
	defer cancel()
	who := t.topicPartition
	defer t.s.troubles.Left(who)
	for pause := waits.New(leastPause, mostPause); ; {
		id, err := t.s.topics.fresh(ctx, t.topic, t.began)
		if err == nil {
			t.s.troubles.Well(who)
			t.mu.Lock()
			t.id = id
			t.mu.Unlock()
			return true
		}
		if ctx.Err() != nil {
			return false
		}
		const what = "cannot start with the partition yet"
		t.s.troubles.Add(t.s.log, slog.LevelWarn, who, what, what, "topic", t.topic, "partition", t.number, "err", err)
		if !waits.Sleep(ctx, pause.Next()) {
			return false
		}
	}
}

// err returns why the tenure no longer holds, or nil. It checks contact itself, because a process
// that was frozen may call err before the timer fires.
func (t *tenure) err() error {
	if t.Lost() == nil && t.s.contact.overdue() {
		t.Lose(errSilence)
		t.s.regainIfDue()
	}
	return t.State.Err()
}

func (t *tenure) topicID() [16]byte {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.id
}

// Origin implements [consumer.Tenure]. It does not change: if the topic is deleted and created
// again, the tenure is lost, and another tenure begins.
func (t *tenure) Origin() epoch.Origin { return t.s.origin(t.topicPartition, t.topicID()) }

// Term implements [consumer.Tenure].
func (t *tenure) Term() time.Duration { return t.s.contact.lease().term() }

func (t *tenure) unpublished() (committed, bool) {
	at, ok := t.Unpublished()
	if !ok {
		return committed{}, false
	}
	t.warnOtherCommit(at)
	if _, stays := t.Theirs(at); stays {
		return committed{}, false
	}
	return committedOf(at), true
}

// warnOtherCommit logs, once, that others have committed another position than ours.
func (t *tenure) warnOtherCommit(at epoch.Fence) {
	if theirs, say := t.ToSay(at); say {
		t.s.log.Warn(tenures.NotHeeded, "topic", t.topic, "partition", t.number, "committed", theirs, "next", at.Next, "remedy", tenures.Remedy)
	}
}

func (t *tenure) publishedAs(c committed) {
	if c.ours() {
		t.Published(epoch.Offset(c.at))
	}
}

var errBadPosition = errors.New("the fence's position is negative")

// Read implements [consumer.Tenure]. If retention has passed the position, it continues above it only if
// nothing was applied yet (R9). Keys, values and headers are slices of the broker's response,
// and nobody writes to them. The slice of messages is reused for the next batch.
func (t *tenure) Read(ctx context.Context, from epoch.Fence) iter.Seq2[consumer.Batch, error] {
	return t.State.Read(ctx, func(ctx context.Context, yield func(consumer.Batch) bool) error {
		return t.read(ctx, from, yield)
	})
}

func (t *tenure) read(ctx context.Context, from epoch.Fence, yield func(consumer.Batch) bool) error {
	if err := t.check(from); err != nil {
		return err
	}
	for {
		err := t.readFrom(ctx, from, yield)
		var misfit *consumer.PositionError
		if from.Applied || !errors.As(err, &misfit) || !errors.Is(err, consumer.ErrOffsetExpired) || misfit.Position != from.Next {
			return err
		}
		from.Next, from.Mark = misfit.Found, epoch.NoMark // nothing was applied yet, so nothing is lost
	}
}

func (t *tenure) readFrom(ctx context.Context, from epoch.Fence, yield func(consumer.Batch) bool) error {
	f := newFeed(t.topicPartition, t.topicID(), from)
	f.recycle = t.s.set.recycle
	t.s.fetcher.order(open, f)
	defer t.s.fetcher.order(shut, f)
	for ctx.Err() == nil {
		batch, err, freed := f.take(t.s.fetcher.share() / 2)
		if freed {
			t.s.fetcher.order(resume, f)
		}
		t.s.fetcher.taken()
		switch {
		case batch != nil:
			if !yield(*batch) {
				return nil
			}
		case err != nil:
			return t.explain(ctx, f, from, err)
		default:
			select {
			case <-f.ready:
			case <-ctx.Done():
			}
		}
	}
	return nil
}

func (t *tenure) check(from epoch.Fence) error {
	if err := from.Check(t.Origin()); err != nil {
		return fmt.Errorf("kafkasource: read: %w", err)
	}
	if from.Next < 0 {
		return fmt.Errorf("kafkasource: read %s at offset %d: %w", from.Partition, from.Next, errBadPosition)
	}
	return nil
}

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
