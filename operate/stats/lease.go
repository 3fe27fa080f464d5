package stats

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/epochfence/epochfence/lease"
)

// This file turns the events of leases into values by resource, and decides which resources have
// series of their own.

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
