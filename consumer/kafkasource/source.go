package kafkasource

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/internal/text/troubles"
)

// This file starts the two clients and ends them in order. membership.go runs the tenures.

// Source is a [consumer.Source] that leases partitions from a Kafka consumer group and reads them.
// Create it with [New]. It is good for one Run.
type Source struct {
	set settings
	log *slog.Logger

	troubles *troubles.Log[topicPartition] // the membership's have no partition

	started atomic.Bool
	out     atomic.Bool // stays out of the group
	own     func(context.Context, consumer.Tenure)
	rejoins func(context.Context) error // see RejoinWhen; nil: always
	stays   context.Context             // ends when Run is to end
	member  func(err error)             // Run's joined; called with mu held
	base    context.Context             // outlives the context of Run, until all partitions are given back

	cluster string
	reader  *kgo.Client
	group   atomic.Pointer[groupClient]
	leaving context.CancelFunc // ends the client of the group
	ready   chan struct{}      // closed when group is set
	topics  *topicIDs
	offsets *groupOffsets
	fetcher *fetcher
	commits *commits
	contact *contact
	failed  chan error    // takes the first error that ends Run
	gaveUp  chan struct{} // full when a partition was given up because a handler hangs, or the handler has returned
	over    chan struct{} // closed when Run returns

	tenures sync.WaitGroup

	mu       sync.Mutex
	slots    map[topicPartition]*slot
	listings map[listingKey]*listing
	joined   joining // zero before the first time
	closing  bool
	away     bool // not in the group, because a handler hangs

	hasty      int // calls of heartbeatSoon
	hastyUntil time.Time
}

var _ consumer.Source = (*Source)(nil)

// New checks the options and returns a source. It does not connect.
func New(o Options) (*Source, error) {
	set, err := o.resolve()
	if err != nil {
		return nil, err
	}
	s := &Source{
		set: set, log: set.Logger, troubles: troubles.New[topicPartition](set.Logger, "concerned"), slots: map[topicPartition]*slot{},
		ready: make(chan struct{}), failed: make(chan error, 1), gaveUp: make(chan struct{}, 1), over: make(chan struct{}),
	}
	s.commits = newCommits(s)
	s.contact = &contact{classic: set.classic, nextGen: set.classic, lose: s.contactLost, regained: s.contactRegained}
	return s, nil
}

// Run implements [consumer.Source]. It returns nil when ctx has ended and all partitions were given
// back. It returns an error if the cluster was not reached within StartTimeout or refuses us, or if
// another process has joined as the same static member.
func (s *Source) Run(ctx context.Context, joined func(error), own func(context.Context, consumer.Tenure)) error {
	if s.started.Swap(true) {
		return errors.New("kafkasource: Run was called before; make a new Source")
	}
	s.own, s.member = own, func(err error) {
		if err == nil {
			s.troubles.Well(topicPartition{})
		}
		joined(err)
	}
	defer close(s.over)
	defer s.troubles.Close()
	base, end := context.WithCancel(s.set.values)
	defer end()
	s.base, s.stays = context.WithoutCancel(ctx), ctx

	budget := newBudget(s.set.BufferBytes, s.set.readMax)
	first, _ := budget.sizes(1, 1, 1, budget.spare(0))
	var pools []kgo.Pool
	if s.set.recycle {
		pools = append(pools, &recordPool{})
	}
	reader, err := s.client(base, s.set.ReadClient,
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.ConsumeResetOffset(kgo.NoResetOffset()),
		kgo.KeepRetryableFetchErrors(),
		kgo.KeepControlRecords(), // so that the position passes transaction markers
		kgo.FetchMaxBytes(first.fetch), kgo.FetchMaxPartitionBytes(first.partition),
		kgo.WithHooks(budget),
		kgo.WithPools(pools...),
	)
	if err != nil {
		return err
	}
	defer s.close(reader, end)
	s.reader = reader
	s.topics = newTopicIDs(reader, s.set.Topics, s.renewed)
	s.offsets = newGroupOffsets(reader, s.set.Group, s.set.Topics)
	s.fetcher = newFetcher(reader, budget, s.log)
	if err := s.reach(ctx); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	if s.set.nextGen {
		if s.contact.nextGen, err = s.nextGenLease(ctx); err != nil {
			return err
		}
	}
	return s.join(ctx, base)
}

// join is the part of Run after the cluster was reached.
func (s *Source) join(ctx, base context.Context) error {
	working, rest := context.WithCancel(s.base)
	var workers sync.WaitGroup
	defer workers.Wait()
	defer rest()
	workers.Go(func() { s.fetcher.run(working) })
	workers.Go(func() { s.commits.run(working, s.set.MirrorInterval) })

	defer s.contact.stop()
	if err := s.enter(base); err != nil {
		return err
	}
	close(s.ready)
	workers.Go(func() { s.watch(working) })

	err := s.attend(ctx, base)
	if err != nil {
		for _, t := range s.running() {
			t.Lose(err)
		}
	}
	s.shutdown()
	return err
}

func (s *Source) enter(base context.Context) error {
	base, end := context.WithCancel(base)
	group, err := s.client(base, s.set.GroupClient,
		kgo.ConsumerGroup(s.set.Group),
		kgo.ConsumeTopics(s.set.Topics...),
		kgo.DisableAutoCommit(),
		kgo.OnPartitionsAssigned(s.assigned),
		kgo.OnPartitionsRevoked(s.revoked),
		kgo.OnPartitionsLost(s.lostAll),
		kgo.AdjustFetchOffsetsFn(readNothing),
		kgo.ConsumeResetOffset(kgo.NoResetOffset()),
		kgo.WithHooks(s.contact, groupHook{s}),
	)
	if err != nil {
		end()
		return err
	}
	s.leaving = end
	s.group.Store(&groupClient{group})
	return nil
}

// readNothing keeps the member of the group from reading, because reading does not start at the
// group's committed offsets (R8).
func readNothing(context.Context, map[string]map[int32]kgo.Offset) (map[string]map[int32]kgo.Offset, error) {
	return nil, nil
}

// watch sends heartbeats while kgo sends none, and polls the errors of the member and the topic
// ids.
func (s *Source) watch(ctx context.Context) {
	every := time.NewTicker(min(s.contact.lease().patience()/6, time.Minute))
	defer every.Stop()
	topics := time.NewTicker(topicInterval)
	defer topics.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-topics.C:
			s.lookAtTopics(ctx)
			continue
		case <-every.C:
		}
		if s.contact.heartbeatDue() {
			s.heartbeat()
		}
		// The member reads nothing, but kgo queues its errors as fetches.
		poll, cancel := context.WithTimeout(ctx, time.Millisecond)
		for _, e := range s.memberClient().PollFetches(poll).Errors() {
			if e.Topic != "" {
				s.log.Debug("the group's client", "topic", e.Topic, "partition", e.Partition, "err", e.Err)
			}
		}
		cancel()
	}
}

// topicInterval is the interval between polls of the topic ids. A fetch notices by itself that a
// topic was deleted and created again. The polls are for partitions that are not being read.
const topicInterval = 10 * time.Second

func (s *Source) lookAtTopics(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	if _, err := s.topics.fresh(ctx, s.set.Topics[0], time.Now()); err != nil {
		s.log.Debug("cannot look at the topics", "err", err)
	}
}

// closeTimeout limits how long leaving the group may take. If it fails, the group removes the
// member after the session timeout.
const closeTimeout = 5 * time.Second

// shutdown drains every partition, publishes the last positions, and leaves the group. Each step
// has a timeout.
func (s *Source) shutdown() {
	s.mu.Lock()
	s.closing = true
	away := s.away
	s.mu.Unlock()
	if away {
		s.linger()
		return
	}
	ts := s.held()
	s.drain(ts)
	s.commits.flush(ts)
	s.leave()
	s.linger()
}

// leave leaves the group and closes the member's client. kgo waits for a join under way before
// it leaves. closeTimeout limits that wait.
func (s *Source) leave() {
	ctx, cancel := context.WithTimeout(s.base, closeTimeout)
	defer cancel()
	group := s.memberClient()
	member, _ := group.GroupMetadata()
	if err := group.LeaveGroupContext(ctx); err != nil {
		s.log.Warn("could not tell the group that this member leaves; the group removes it after the session timeout", "session_timeout", s.contact.lease().session, "err", err)
	}
	if s.isAway() {
		s.leaveForGood(ctx, member)
	}
	s.close(group, s.leaving)
	s.leaving()
}

func (s *Source) isAway() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.away
}

// close closes a client, and ends its context if that takes too long.
func (s *Source) close(cl *kgo.Client, end context.CancelFunc) {
	cut := time.AfterFunc(closeTimeout, end)
	defer cut.Stop()
	cl.Close()
}

// linger waits for cancelled tenures, for closeTimeout at most, because a handler may never return.
func (s *Source) linger() {
	done := make(chan struct{})
	go func() {
		s.tenures.Wait()
		close(done)
	}()
	limit := time.NewTimer(closeTimeout)
	defer limit.Stop()
	select {
	case <-done:
	case <-limit.C:
		s.log.Error("some handlers have not returned although their partitions were taken from them")
	}
}

// fail ends Run with err, unless it is ending already.
func (s *Source) fail(err error) {
	select {
	case s.failed <- err:
	default:
	}
}
