package stats_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/epochfence/epochfence/cas/memstore"
	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/suites/bubble"
	"github.com/epochfence/epochfence/lease"
	"github.com/epochfence/epochfence/operate/stats"
	"github.com/epochfence/epochfence/sinks/memsink"
)

var nightly = lease.Resource{Name: "nightly"}

func TestEachEventOfALeaseCountsWhatItSays(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := stats.New()
		const of = "{resource=nightly/0"
		for _, step := range []struct {
			event lease.Event
			want  []string
		}{
			{lease.Joined{}, []string{"member +1"}},
			{lease.Left{}, []string{"member -1"}},
			{lease.NotAcquired{Resource: nightly, Err: fmt.Errorf("acquire: %w", lease.ErrHeld)}, []string{"lease_acquisitions_total" + of + ",outcome=held} +1"}},
			{lease.NotAcquired{Resource: nightly, Err: fmt.Errorf("%w: %w", lease.ErrUnanswered, context.DeadlineExceeded)}, []string{"lease_acquisitions_total" + of + ",outcome=failed} +1"}},
			{lease.NotAcquired{Resource: nightly, Err: lease.ErrClosed}, []string{"lease_acquisitions_total" + of + ",outcome=closed} +1"}},
			{lease.Waiting{Resource: nightly}, []string{"lease_waiting" + of + "} +1"}},
			{lease.Waiting{Resource: nightly}, []string{"lease_waiting" + of + "} +1"}},
			{
				lease.NotAcquired{Resource: nightly, Queued: true, Err: context.Canceled},
				[]string{"lease_acquisitions_total" + of + ",outcome=gave_up} +1", "lease_waiting" + of + "} -1"},
			},
			{
				lease.Acquired{Resource: nightly, Queued: true, Waited: 3 * time.Second},
				[]string{
					"lease_acquisitions_total" + of + ",outcome=acquired} +1", "lease_waiting" + of + "} -1", "leases_held" + of + "} +1",
					"lease_acquire_duration_seconds" + of + "}_count +1", "lease_acquire_duration_seconds" + of + "}_sum +3",
				},
			},
			{lease.Renewed{Resource: nightly}, []string{"lease_renewals_total" + of + "} +1"}},
			{lease.NotClaimed{Resource: nightly, Refusal: lease.RefusalStale}, []string{"lease_rejects_total" + of + ",reason=stale,stage=claim} +1"}},
			{lease.NotClaimed{Resource: nightly, Err: errors.New("connection refused")}, nil},
			{
				lease.Worked{Resource: nightly, Took: 3 * time.Second, TTL: 15 * time.Second, Gap: 2},
				[]string{
					"lease_work_total" + of + ",outcome=committed} +1", "lease_work_ttl_ratio" + of + "}_count +1", "lease_work_ttl_ratio" + of + "}_sum +0.2",
					"lease_token_gap" + of + ",outcome=claimed}_count +1", "lease_token_gap" + of + ",outcome=claimed}_sum +2",
				},
			},
			{
				lease.Worked{Resource: nightly, TTL: 15 * time.Second, Outcome: lease.OutcomeRefused, Refusal: lease.RefusalStale, Gap: 5},
				[]string{
					"lease_work_total" + of + ",outcome=refused} +1", "lease_work_ttl_ratio" + of + "}_count +1", "lease_rejects_total" + of + ",reason=stale,stage=commit} +1",
					"lease_token_gap" + of + ",outcome=refused}_count +1", "lease_token_gap" + of + ",outcome=refused}_sum +5",
				},
			},
			{
				lease.Worked{Resource: nightly, TTL: 15 * time.Second, Outcome: lease.OutcomeRefused, Refusal: lease.RefusalMoved},
				[]string{
					"lease_work_total" + of + ",outcome=refused} +1", "lease_work_ttl_ratio" + of + "}_count +1", "lease_rejects_total" + of + ",reason=moved,stage=commit} +1",
				},
			},
			{
				lease.Worked{Resource: nightly, TTL: 15 * time.Second, Outcome: lease.OutcomeUnfenced},
				[]string{
					"lease_work_total" + of + ",outcome=unfenced} +1", "lease_work_ttl_ratio" + of + "}_count +1", "unfenced_writes_total{where=lock} +1",
					"lease_token_gap" + of + ",outcome=claimed}_count +1",
				},
			},
			{
				lease.Released{Resource: nightly, Held: 40 * time.Second},
				[]string{"leases_held" + of + "} -1", "lease_held_duration_seconds" + of + "}_count +1", "lease_held_duration_seconds" + of + "}_sum +40"},
			},
			{
				lease.Lost{Resource: nightly, Held: time.Second, Reason: lease.ReasonTaken},
				[]string{"leases_held" + of + "} -1", "lease_held_duration_seconds" + of + "}_count +1", "lease_held_duration_seconds" + of + "}_sum +1"},
			},
			{
				lease.Lost{Resource: nightly, Working: true, Reason: lease.ReasonTaken},
				[]string{"leases_held" + of + "} -1", "lease_held_duration_seconds" + of + "}_count +1", "leases_lost_working_total" + of + ",cause=lease_taken} +1"},
			},
		} {
			before := values(s)
			s.ObserveLease(step.event)
			want(t, fmt.Sprintf("%T", step.event), before, values(s), step.want...)
		}
	})
}

func TestEachWordOfALeasesEventIsCountedSomewhere(t *testing.T) {
	for o := lease.OutcomeCommitted; !strings.HasPrefix(o.String(), "Outcome("); o++ {
		s := stats.New()
		s.ObserveLease(lease.Worked{Resource: nightly, TTL: time.Second, Outcome: o})
		if values(s)["lease_work_total{resource=nightly/0,outcome="+o.String()+"}"] != 1 {
			t.Errorf("%v is not counted", o)
		}
	}
	for r := lease.ReasonExpired; !strings.HasPrefix(r.String(), "Reason("); r++ {
		s := stats.New()
		s.ObserveLease(lease.Lost{Resource: nightly, Working: true, Reason: r})
		if values(s)["leases_lost_working_total{resource=nightly/0,cause="+r.String()+"}"] != 1 {
			t.Errorf("%v is not counted", r)
		}
	}
	for r := lease.RefusalStale; !strings.HasPrefix(r.String(), "Refusal("); r++ {
		s := stats.New()
		s.ObserveLease(lease.NotClaimed{Resource: nightly, Refusal: r})
		s.ObserveLease(lease.Worked{Resource: nightly, TTL: time.Second, Outcome: lease.OutcomeRefused, Refusal: r})
		n := 0.0
		for name, v := range values(s) {
			if strings.HasPrefix(name, "lease_rejects_total{resource=nightly/0,reason="+r.String()+",") {
				n += v
			}
		}
		if n < 1 {
			t.Errorf("%v is not counted", r)
		}
	}
}

// A consumer that has never joined, or has left, does not look well because of a lock.
func TestAMemberOfAGroupOfLeasesIsNotOneOfAConsumerGroup(t *testing.T) {
	s := stats.New()
	s.ObserveLease(lease.Joined{})
	for _, e := range []consumer.Event{consumer.Granted{Partition: at}, consumer.Left{}} {
		s.Observe(e)
		if values(s)["member"] != 0 {
			t.Errorf("after %T it is a member", e)
		}
	}
	s.Observe(consumer.Joined{})
	s.ObserveLease(lease.Left{})
	if values(s)["member"] != 1 {
		t.Error("it is no member")
	}
}

// Nobody gets the lock: no wait has ended, and each has to be seen.
func TestTheTimeOfThoseWhoStillWaitIsCounted(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := stats.New()
		waited := func() float64 { return values(s)["lease_wait_seconds_total{resource=nightly/0}"] }
		s.ObserveLease(lease.Waiting{Resource: nightly})
		<-time.After(10 * time.Second)
		if got := waited(); got != 10 {
			t.Errorf("after 10 s it is %v", got)
		}
		s.ObserveLease(lease.Waiting{Resource: nightly})
		<-time.After(10 * time.Second)
		s.ObserveLease(lease.Acquired{Resource: nightly, Queued: true, Waited: 20 * time.Second})
		<-time.After(10 * time.Second)
		s.ObserveLease(lease.NotAcquired{Resource: nightly, Queued: true, Waited: 20 * time.Second, Err: context.Canceled})
		<-time.After(time.Hour)
		if got := waited(); got != 40 {
			t.Errorf("two calls waited for 20 s each, and it is %v", got)
		}
	})
}

func TestResourcesBeyondTheLimitAreCountedTogether(t *testing.T) {
	s := stats.New()
	for n := range int32(30) {
		s.ObserveLease(lease.Acquired{Resource: lease.Resource{Name: "cart\xff", Number: n}})
	}
	for n := range int32(30) {
		s.ObserveLease(lease.Released{Resource: lease.Resource{Name: "cart\xff", Number: n}, Held: time.Second})
	}
	sum, all := 0.0, values(s)
	for name, v := range all {
		if strings.HasPrefix(name, "lease_acquisitions_total{") {
			sum += v
		}
		if strings.HasPrefix(name, "leases_held{") {
			t.Errorf("%s is %v", name, v)
		}
	}
	others := all["lease_held_duration_seconds{resource="+stats.OtherResources+"}_count"]
	if sum != 30 || others != 11 || all["lease_held_duration_seconds{resource=cart�/18}_count"] != 1 {
		t.Errorf("%v leases, %v of them others", sum, others)
	}
}

// The whole way: two processes, the first of which is frozen in its work.
func TestALockThatIsTakenOverIsSeenFromBothSides(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		store, sink := memstore.New(), memsink.New()
		join := func() (*lease.Member, *stats.Stats) {
			s := stats.New()
			m, err := lease.Open(t.Context(), store, lease.Options{Group: "billing", Observe: s.ObserveLease, Logger: slog.New(slog.DiscardHandler)})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(m.Close)
			return m, s
		}
		a, ofA := join()
		b, ofB := join()
		thaw := make(chan struct{})
		frozen := sink.Open()
		frozen.Script(memsink.Hooks{Commit: func(_ context.Context, _ []epoch.Advance, do func() error) error {
			<-thaw
			return do()
		}})
		work := func(context.Context, *memsink.Tx, epoch.Epoch) error { return nil }
		done := make(chan error)
		go func() { done <- lease.Do(t.Context(), a, frozen, "nightly", work) }()
		<-time.After(time.Second)
		// Somebody deletes the lease, which is quicker than to freeze the store, and the first one hears of it.
		item, err := store.Get(t.Context(), "billing/lease/resource/nightly/0")
		if err == nil {
			err = store.Delete(t.Context(), item)
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := lease.Do(t.Context(), b, sink, "nightly", work); err != nil {
			t.Fatal(err)
		}
		close(thaw)
		if err := <-done; !errors.Is(err, epoch.ErrStale) || !errors.Is(err, lease.ErrLost) {
			t.Fatal(err)
		}
		<-time.After(time.Second)
		for name, n := range map[string]float64{
			"lease_rejects_total{resource=nightly/0,reason=stale,stage=commit}": 1, "lease_work_total{resource=nightly/0,outcome=refused}": 1,
			"leases_lost_working_total{resource=nightly/0,cause=lease_taken}": 1, "leases_held{resource=nightly/0}": 0,
			"lease_token_gap{resource=nightly/0,outcome=refused}_count": 1,
		} {
			if got := values(ofA)[name]; got != n {
				t.Errorf("the frozen one: %s is %v, want %v", name, got, n)
			}
		}
		for name, n := range map[string]float64{
			"lease_work_total{resource=nightly/0,outcome=committed}": 1, "lease_held_duration_seconds{resource=nightly/0}_count": 1,
			"lease_acquisitions_total{resource=nightly/0,outcome=acquired}": 1, "leases_held{resource=nightly/0}": 0,
			"lease_token_gap{resource=nightly/0,outcome=claimed}_count": 1, "lease_token_gap{resource=nightly/0,outcome=refused}_count": 0,
		} {
			if got := values(ofB)[name]; got != n {
				t.Errorf("the other one: %s is %v, want %v", name, got, n)
			}
		}
	})
}
