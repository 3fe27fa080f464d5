package stats

import (
	"sync"
	"time"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/httpfence"
	"github.com/epochfence/epochfence/outbox"
)

// Stats are those of one [consumer.Run], with its outbox and a receiver if the process has
// them. [New] makes them. Methods are safe for concurrent use, and do not block.
type Stats struct {
	status consumer.Status // all that is so now of partitions

	mu       sync.Mutex
	values   values
	timeline timeline
	total    speed
	speeds   map[epoch.Partition]*speed          // of those that are held
	backlogs map[epoch.Partition]outbox.Backlog  // likewise
	changed  chan struct{}                       // closed at the next change; nil while nobody waits
	feeds    []func(m *Metric, observed float64) // see Feed
}

// speed is how fast messages are applied.
type speed struct{ messages, bytes rate }

// New returns stats of which everything is zero.
func New() *Stats {
	return &Stats{values: newValues(), speeds: map[epoch.Partition]*speed{}, backlogs: map[epoch.Partition]outbox.Backlog{}}
}

// Status returns the present state, for readiness probes and operators.
func (s *Stats) Status() *consumer.Status { return &s.status }

// Feed has f called with each observation of a histogram from now on, for a library that
// keeps histograms itself. f must not block, nor call methods of s.
func (s *Stats) Feed(f func(m *Metric, observed float64)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.feeds = append(s.feeds, f)
}

// Changed returns a channel that is closed at the next event. Ask for it before
// looking, so that no change is missed; and look no more often than anybody can
// read, as there may be thousands of events in a second.
func (s *Stats) Changed() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.changed == nil {
		s.changed = make(chan struct{})
	}
	return s.changed
}

// Timeline returns what has happened lately, the newest first: the last 1,000 moments.
func (s *Stats) Timeline() []Moment {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.timeline.list()
}

// update has f change s, and tells those who wait for changes.
func (s *Stats) update(f func(now time.Time)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(time.Now())
	if s.changed != nil {
		close(s.changed)
		s.changed = nil
	}
}

// Observe is for [consumer.Options.Observe].
func (s *Stats) Observe(e consumer.Event) {
	s.status.Observe(e)
	s.update(func(now time.Time) {
		s.count(now, e)
		s.timeline.note(now, e)
	})
}

func (s *Stats) count(now time.Time, e consumer.Event) {
	switch e := e.(type) {
	case consumer.Granted:
		s.speeds[e.Partition] = &speed{}
	case consumer.NotClaimed:
		s.values.add(claims, 1, claimOutcome(e.Reason))
		s.values.add(fenceRejects, 1, e.Reason.String(), "claim")
	case consumer.Claimed:
		s.values.add(claims, 1, claimed)
		s.observe(claimDuration, e.Waited.Seconds())
	case consumer.Advanced:
		s.advanced(now, e)
	case consumer.Transacted:
		s.transacted(e)
	case consumer.Stale:
		s.gap(e.Ours.Epoch, e.Held.Epoch)
	case consumer.Halted:
		s.values.add(halts, 1, e.Reason.String())
	case consumer.WentBack:
		s.values.add(sinkWentBack, 1)
	case consumer.Overdue:
		s.values.add(overdue, 1)
	case consumer.Lost:
		if e.InFlight {
			s.values.add(tenuresLostInFlight, 1, e.Reason.String())
		}
		s.over(e.Partition)
	case consumer.Drained:
		s.over(e.Partition)
	}
}

func (s *Stats) advanced(now time.Time, e consumer.Advanced) {
	s.values.add(messages, float64(e.Messages))
	s.values.add(messageBytes, float64(e.Bytes))
	s.values.add(deadLetters, float64(e.Failed))
	if !e.Oldest.IsZero() {
		s.observe(applyDelay, max(now.Sub(e.Oldest), 0).Seconds())
	}
	for _, v := range []*speed{&s.total, s.speeds[e.Partition]} {
		if v != nil {
			v.messages.add(now, float64(e.Messages))
			v.bytes.add(now, float64(e.Bytes))
		}
	}
}

func (s *Stats) transacted(e consumer.Transacted) {
	s.values.add(transactions, 1, e.Outcome.String())
	where, stage := "handler", "commit"
	if e.Background {
		where, stage = "background", "background"
	} else {
		s.observe(transactionDuration, e.Took.Seconds())
		s.observe(handlerDuration, e.Handling.Seconds())
	}
	if e.Outcome == consumer.OutcomeRefused {
		s.values.add(fenceRejects, 1, e.Reason.String(), stage)
	}
	if e.Reason == consumer.ReasonHandlerEndedTx {
		s.values.add(unfencedWrites, 1, where)
	}
	if e.Failure != consumer.FailureNone && !e.Background {
		s.values.add(handlerFailures, 1, e.Failure.String())
	}
}

// over: the tenure of a partition is.
func (s *Stats) over(p epoch.Partition) {
	delete(s.speeds, p)
	delete(s.backlogs, p)
}

// gap notes by how much what was refused is behind.
func (s *Stats) gap(ours, held epoch.Epoch) {
	if held > ours {
		s.observe(tokenGap, float64(held-ours))
	}
}

func (s *Stats) observe(metric int, x float64) {
	s.values.observe(metric, x)
	for _, f := range s.feeds {
		f(&table[metric], x)
	}
}

// ObserveOutbox is for [outbox.Options.Observe].
func (s *Stats) ObserveOutbox(e outbox.Event) {
	s.update(func(now time.Time) {
		s.values.add(outboxDeliveries, 1, e.Kind.String())
		if e.Kind != outbox.Fenced {
			return
		}
		s.values.add(fenceRejects, 1, consumer.ReasonStale.String(), "receiver")
		s.gap(e.Epoch, e.Highest)
		s.timeline.add(Moment{
			At: now, Kind: ReceiverRefused, Partition: e.Partition, Epoch: e.Epoch, Next: -1,
			OtherEpoch: e.Highest, Reason: consumer.ReasonStale, Text: text(e.Err),
		})
	})
}

// ObserveBacklog is for [outbox.Options.ObserveBacklog].
func (s *Stats) ObserveBacklog(b outbox.Backlog) {
	s.update(func(time.Time) {
		if s.speeds[b.Partition] != nil { // held
			s.backlogs[b.Partition] = b
		}
	})
}

// ObserveReceiver is for [httpfence.Options.Observe].
func (s *Stats) ObserveReceiver(e httpfence.Event) {
	s.update(func(time.Time) {
		s.values.add(receiverRequests, 1, receiverOutcome(e.Outcome))
		s.observe(receiverDuration, e.Took.Seconds())
	})
}
