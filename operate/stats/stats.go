package stats

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/epochfence/epochfence/cas/guard"
	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/lease"
	"github.com/epochfence/epochfence/operate"
	"github.com/epochfence/epochfence/outbox"
	"github.com/epochfence/epochfence/outbox/httpfence"
)

// This file turns the events of consumers, outboxes, receivers and guards into values. It holds the
// lock; metric.go keeps the numbers, timeline.go the latest events.

// Stats are the statistics of one [consumer.Run], with its outbox and a receiver if the process has
// them, or of the locks of one lease.Member. [New] makes them. Methods are safe for concurrent use,
// and do not block.
type Stats struct {
	status consumer.Status // the present state of partitions

	mu        sync.Mutex
	values    values
	consumes  bool // Observe was called
	leases    bool // this process is a member of a group of leases
	timeline  timeline
	total     speed
	speeds    map[epoch.Partition]*speed         // of held partitions only
	backlogs  map[epoch.Partition]outbox.Backlog // of held partitions only
	snapshots map[string]int64                   // the age of the oldest, by holder
	deferring int                                // messages
	jobs      map[epoch.Partition]*ticks         // of held partitions only
	resources map[string]*resource
	changed   chan struct{}                                        // closed at the next change; nil while nobody waits
	feeds     []func(m *Metric, labels []string, observed float64) // see Feed
}

type speed struct{ messages, bytes rate }

// ticks are those of a job.
type ticks struct {
	missed int
	late   time.Duration // the last one
}

// New returns Stats in which everything is zero.
func New() *Stats {
	return &Stats{
		values: newValues(func(m *Metric) bool { return !m.PerResource() }),
		speeds: map[epoch.Partition]*speed{}, backlogs: map[epoch.Partition]outbox.Backlog{}, resources: map[string]*resource{}, jobs: map[epoch.Partition]*ticks{},
	}
}

// Status returns the present state, for readiness probes and operators.
func (s *Stats) Status() *consumer.Status { return &s.status }

// Feed makes Stats call f with each later observation of a histogram and the values of its labels, for
// a library that keeps histograms itself. f must not block or call methods of s.
func (s *Stats) Feed(f func(m *Metric, labels []string, observed float64)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.feeds = append(s.feeds, f)
}

// Changed returns a channel that is closed at the next event. Call it before reading the state, so
// that no change is missed. Limit how often you read: there may be thousands of events per second.
func (s *Stats) Changed() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.changed == nil {
		s.changed = make(chan struct{})
	}
	return s.changed
}

// Timeline returns the last 1,000 moments, newest first.
func (s *Stats) Timeline() []Moment {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.timeline.list()
}

func (s *Stats) update(f func(now time.Time)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(time.Now())
	if s.changed != nil {
		close(s.changed)
		s.changed = nil
	}
}

// Observe counts an event of the consumer. Set it as [consumer.Options.Observe].
func (s *Stats) Observe(e consumer.Event) {
	s.status.Observe(e)
	s.update(func(now time.Time) {
		s.consumes = true
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
		if e.Fence.Log == operate.JobLog && s.jobs[e.Fence.Partition] == nil {
			s.jobs[e.Fence.Partition] = &ticks{}
		}
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
	case consumer.Replayed:
		if e.Dead {
			s.values.add(deadLetters, 1)
		}
		if errors.Is(e.Err, epoch.ErrTxEndedByHandler) {
			s.values.add(unfencedWrites, 1, "handler")
		}
	case consumer.Overdue:
		s.values.add(overdue, 1)
	case consumer.Suspected:
		why := silent
		if e.Gone {
			why = gone
		}
		s.values.add(suspicions, 1, why)
	case consumer.SuspicionWrong:
		s.values.add(wrongSuspicions, 1)
	case consumer.SnapshotsHeld:
		s.snapshots = map[string]int64{}
		for _, o := range e.Oldest {
			s.snapshots[o.Holder] = max(s.snapshots[o.Holder], o.Transactions)
		}
	case consumer.Deferring:
		s.deferring = e.Messages
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
	s.values.add(deferredMessages, float64(e.Deferred))
	if !e.Oldest.IsZero() {
		s.observe(applyDelay, max(now.Sub(e.Oldest), 0).Seconds())
	}
	if j := s.jobs[e.Partition]; j != nil {
		j.missed += e.Missed
		if e.Messages > 0 {
			j.late = e.Late
		}
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

func (s *Stats) over(p epoch.Partition) {
	delete(s.speeds, p)
	delete(s.backlogs, p)
	delete(s.jobs, p)
}

func (s *Stats) gap(ours, held epoch.Epoch) {
	if held > ours {
		s.observe(tokenGap, float64(held-ours))
	}
}

func (s *Stats) observe(metric int, x float64) {
	s.values.observe(metric, x)
	for _, f := range s.feeds {
		f(&table[metric], nil, x)
	}
}

// ObserveOutbox counts an event of the outbox. Set it as [outbox.Options.Observe].
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

// ObserveBacklog notes a backlog of the outbox. Set it as [outbox.Options.ObserveBacklog].
func (s *Stats) ObserveBacklog(b outbox.Backlog) {
	s.update(func(time.Time) {
		if s.speeds[b.Partition] != nil { // held
			s.backlogs[b.Partition] = b
		}
	})
}

// ObserveReceiver counts an event of a receiver. Set it as [httpfence.Options.Observe].
func (s *Stats) ObserveReceiver(e httpfence.Event) {
	s.update(func(time.Time) {
		s.values.add(receiverRequests, 1, receiverOutcome(e.Outcome))
		s.observe(receiverDuration, e.Took.Seconds())
	})
}

// ObserveGuard counts a decision about an item. Set it as cassink's Options.Observe, or give it to
// [guard.Message.Observe].
func (s *Stats) ObserveGuard(e guard.Event) {
	s.update(func(time.Time) {
		s.values.add(itemDecisions, 1, e.Decision.String())
		if e.Decision == guard.Stale {
			s.values.add(fenceRejects, 1, consumer.ReasonStale.String(), "item")
			s.gap(e.Stamp.Epoch, e.Seen)
		}
	})
}

const (
	// mostResources limits the resources that have series, counting [OtherResources].
	mostResources = 20

	// OtherResources is the value of the label resource that stands for all resources that have no
	// series of their own: those whose first event comes after that of 19 others.
	OtherResources = "(other)"
)

// resource has the values of the leases of a resource. The caller holds the lock of [Stats].
type resource struct {
	name    string
	values  values
	held    int
	waiting int
	since   time.Time // when the waiting were last added to the waited time
}

func (s *Stats) resource(r lease.Resource) *resource {
	name := strings.ToValidUTF8(r.String(), "�")
	if s.resources[name] == nil && len(s.resources) >= mostResources-1 {
		name = OtherResources
	}
	if s.resources[name] == nil {
		s.resources[name] = &resource{name: name, values: newValues((*Metric).PerResource)}
	}
	return s.resources[name]
}

// waits adds n to the callers that wait.
func (r *resource) waits(now time.Time, n int) {
	r.settle(now)
	r.waiting += n
}

// settle adds the time that callers have waited since it was last called. So the counter rises while
// they wait, and shows a lock that nobody gets.
func (r *resource) settle(now time.Time) {
	r.values.add(leaseWaited, float64(r.waiting)*now.Sub(r.since).Seconds())
	r.since = now
}

// ObserveLease counts an event of leases, or of work under them. Set it as [lease.Options.Observe] of
// a member. Do not pass it the events of a source's leases: the consumer's events count these.
func (s *Stats) ObserveLease(e lease.Event) {
	s.update(func(now time.Time) {
		switch e := e.(type) {
		case lease.Joined:
			s.leases = true
		case lease.Left:
			s.leases = false
		case lease.Waiting:
			s.resource(e.Resource).waits(now, 1)
		case lease.Acquired:
			r := s.resource(e.Resource)
			r.answered(now, e.Queued, acquired)
			r.held++
			s.observeOf(r, leaseAcquire, e.Waited.Seconds())
		case lease.NotAcquired:
			s.resource(e.Resource).answered(now, e.Queued, acquireOutcome(e.Err))
		case lease.Renewed:
			s.resource(e.Resource).values.add(leaseRenewals, 1)
		case lease.Released:
			s.ended(e.Resource, e.Held)
		case lease.Lost:
			s.ended(e.Resource, e.Held)
			if e.Working {
				s.resource(e.Resource).values.add(leasesLostWorking, 1, e.Reason.String())
			}
		case lease.NotClaimed:
			s.resource(e.Resource).values.add(leaseRejects, 1, e.Refusal.String(), "claim")
		case lease.Worked:
			s.worked(e)
		}
	})
}

func (r *resource) answered(now time.Time, queued bool, outcome string) {
	r.values.add(leaseAcquisitions, 1, outcome)
	if queued {
		r.waits(now, -1)
	}
}

func (s *Stats) ended(of lease.Resource, held time.Duration) {
	r := s.resource(of)
	r.held--
	s.observeOf(r, leaseHeldFor, held.Seconds())
}

func (s *Stats) worked(e lease.Worked) {
	r := s.resource(e.Resource)
	r.values.add(leaseWork, 1, e.Outcome.String())
	s.observeOf(r, leaseWorkRatio, e.Took.Seconds()/e.TTL.Seconds())
	switch e.Refusal {
	case lease.RefusalNone:
		s.observeOf(r, leaseTokenGap, float64(e.Gap), claimed)
	case lease.RefusalStale, lease.RefusalLowEpoch:
		s.observeOf(r, leaseTokenGap, float64(e.Gap), refused)
	}
	r.values.add(leaseRejects, 1, e.Refusal.String(), "commit")
	if e.Outcome == lease.OutcomeUnfenced {
		s.values.add(unfencedWrites, 1, "lock")
	}
}

// observeOf adds an observation to a histogram of a resource.
func (s *Stats) observeOf(r *resource, metric int, x float64, labels ...string) {
	r.values.observe(metric, x, labels...)
	for _, f := range s.feeds {
		f(&table[metric], append([]string{r.name}, labels...), x)
	}
}

// readResources adds the samples of all resources, by name.
func (s *Stats) readResources(now time.Time, families []Family) {
	for _, name := range slices.Sorted(maps.Keys(s.resources)) {
		r := s.resources[name]
		r.settle(now)
		for i := range families {
			f := &families[i]
			switch {
			case !f.PerResource():
			case f.Kind == Gauge:
				n := map[int]int{leasesHeld: r.held, leaseWaiting: r.waiting}[i]
				f.Samples = append(f.Samples, Sample{Labels: []string{name}, Value: float64(n)})
			default:
				for _, v := range r.values.samples(i) {
					v.Labels = append([]string{name}, v.Labels...)
					f.Samples = append(f.Samples, v)
				}
			}
		}
	}
}
