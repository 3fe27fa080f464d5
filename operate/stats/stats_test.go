package stats_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/epochfence/epochfence/cas/guard"
	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/memsource"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/suites/bubble"
	"github.com/epochfence/epochfence/lease"
	"github.com/epochfence/epochfence/operate"
	"github.com/epochfence/epochfence/operate/stats"
	"github.com/epochfence/epochfence/outbox"
	"github.com/epochfence/epochfence/outbox/httpfence"
	"github.com/epochfence/epochfence/sinks/memsink"
)

// values are all series of s that are not zero, as Prometheus writes them.
func values(s *stats.Stats) map[string]float64 {
	all := map[string]float64{}
	for _, f := range s.Read() {
		for _, v := range f.Samples {
			var labels []string
			for i, name := range f.Labels {
				labels = append(labels, fmt.Sprintf("%s=%s", name, v.Labels[i]))
			}
			name := strings.TrimPrefix(f.Name, "epochfence_")
			if len(v.Labels) != len(f.Labels) {
				panic(fmt.Sprint(name, " has labels ", v.Labels))
			}
			if len(labels) > 0 {
				name += "{" + strings.Join(labels, ",") + "}"
			}
			if f.Kind == stats.Histogram {
				all[name+"_count"], all[name+"_sum"] = float64(v.Count), v.Sum
			} else {
				all[name] = v.Value
			}
		}
	}
	for name, v := range all {
		if v == 0 {
			delete(all, name)
		}
	}
	return all
}

// want compares what has changed since before.
func want(t *testing.T, about string, before, after map[string]float64, changes ...string) {
	t.Helper()
	var got []string
	for name, v := range after {
		if d := v - before[name]; d != 0 {
			got = append(got, fmt.Sprintf("%s %+.6g", name, d))
		}
	}
	for name, v := range before {
		if _, still := after[name]; !still {
			got = append(got, fmt.Sprintf("%s %+.6g", name, -v))
		}
	}
	slices.Sort(got)
	slices.Sort(changes)
	if !slices.Equal(got, changes) {
		t.Errorf("%s:\n got %s\nwant %s", about, strings.Join(got, "; "), strings.Join(changes, "; "))
	}
}

var at = epoch.Partition{Group: "g", Topic: "orders", Number: 3}

func fence(e epoch.Epoch, next epoch.Offset, owner string) epoch.Fence {
	return epoch.Fence{Origin: epoch.Origin{Partition: at}, Epoch: e, Next: next, Owner: owner}
}

func TestEachEventCountsWhatItSays(t *testing.T) {
	const ofPartition = "{group=g,topic=orders,partition=3}"
	bubble.Test(t, func(t *testing.T) {
		s := stats.New()
		why := errors.New("no table")
		for _, step := range []struct {
			event any
			want  []string
		}{
			{consumer.Joined{}, []string{"member +1"}},
			{consumer.Granted{Partition: at}, []string{"partitions{state=assigned} +1", "partitions_lag_unknown +1"}},
			{consumer.NotClaimed{Partition: at, Reason: consumer.ReasonStale}, []string{"claims_total{outcome=raced} +1", "fence_rejects_total{reason=stale,stage=claim} +1"}},
			{consumer.NotClaimed{Partition: at, Reason: consumer.ReasonNotConfirmed}, []string{"claims_total{outcome=not_confirmed} +1"}},
			{consumer.NotClaimed{Partition: at, Reason: consumer.ReasonSink}, []string{"claims_total{outcome=failed} +1"}},
			{consumer.NotClaimed{Partition: at, Reason: consumer.ReasonUnhealthy}, []string{"claims_total{outcome=refused} +1"}},
			{consumer.NotClaimed{Partition: at, Reason: consumer.ReasonForeignLease}, []string{"claims_total{outcome=refused} +1", "fence_rejects_total{reason=foreign_lease,stage=claim} +1"}},
			{
				consumer.Claimed{Fence: fence(7, 20, "a"), Seen: fence(5, 20, "b"), Attempts: 5, Waited: 2 * time.Second},
				[]string{
					"claims_total{outcome=claimed} +1", "claim_duration_seconds_count +1", "claim_duration_seconds_sum +2", "partitions{state=assigned} -1", "partitions{state=claimed} +1",
					"partition_next_offset" + ofPartition + " +20", "partition_epoch" + ofPartition + " +7",
				},
			},
			{
				consumer.Transacted{Partitions: 1, Messages: 10, Took: time.Second, Handling: time.Second / 4},
				[]string{
					"transactions_total{outcome=committed} +1", "transaction_duration_seconds_count +1", "transaction_duration_seconds_sum +1",
					"handler_duration_seconds_count +1", "handler_duration_seconds_sum +0.25",
				},
			},
			{
				consumer.Advanced{
					Partition: at, Epoch: 7, From: 20, To: 30, Messages: 10, Failed: 1, Bytes: 500, Lag: 4,
					Oldest: time.Now().Add(-3 * time.Second), Newest: time.Unix(1000, 5e8),
				},
				[]string{
					"messages_total +10", "message_bytes_total +500", "dead_letters_total +1", "apply_delay_seconds_count +1", "apply_delay_seconds_sum +3",
					"lag_messages +4", "partitions_lag_unknown -1", "partition_lag_messages" + ofPartition + " +4", "partition_next_offset" + ofPartition + " +10",
					"partition_newest_message_timestamp_seconds" + ofPartition + " +1000.5",
				},
			},
			{ // a source that says nothing of its end, and messages without a time
				consumer.Advanced{Partition: at, Epoch: 7, From: 30, To: 31, Messages: 1, Lag: -1},
				[]string{"messages_total +1", "partition_next_offset" + ofPartition + " +1"},
			},
			{
				consumer.Transacted{Outcome: consumer.OutcomeFailed, Reason: consumer.ReasonMessageFailed, Failure: consumer.FailurePanic, Partitions: 1, Messages: 1},
				[]string{"transactions_total{outcome=failed} +1", "transaction_duration_seconds_count +1", "handler_duration_seconds_count +1", "handler_failures_total{kind=panic} +1"},
			},
			{
				consumer.Transacted{Outcome: consumer.OutcomeRefused, Reason: consumer.ReasonStale},
				[]string{"transactions_total{outcome=refused} +1", "transaction_duration_seconds_count +1", "handler_duration_seconds_count +1", "fence_rejects_total{reason=stale,stage=commit} +1"},
			},
			{
				consumer.Stale{Ours: fence(7, 31, "a"), Held: fence(10, 31, "b")},
				[]string{"token_gap_count +1", "token_gap_sum +3", "partitions{state=claimed} -1", "partitions{state=assigned} +1"},
			},
			{
				consumer.Transacted{Outcome: consumer.OutcomeRefused, Reason: consumer.ReasonStale, Background: true},
				[]string{"transactions_total{outcome=refused} +1", "fence_rejects_total{reason=stale,stage=background} +1"},
			},
			{
				consumer.Transacted{Outcome: consumer.OutcomeFailed, Reason: consumer.ReasonHandlerEndedTx, Background: true},
				[]string{"transactions_total{outcome=failed} +1", "unfenced_writes_total{where=background} +1"},
			},
			{
				consumer.Transacted{Outcome: consumer.OutcomeFailed, Reason: consumer.ReasonHandlerEndedTx},
				[]string{"transactions_total{outcome=failed} +1", "transaction_duration_seconds_count +1", "handler_duration_seconds_count +1", "unfenced_writes_total{where=handler} +1"},
			},
			{
				consumer.Replayed{Partition: at, Epoch: 7, Err: fmt.Errorf("commit: %w", epoch.ErrTxEndedByHandler)},
				[]string{"unfenced_writes_total{where=handler} +1"},
			},
			{
				consumer.Halted{Partition: at, Epoch: 7, Next: 31, Reason: consumer.ReasonUnhealthy, Err: why, RetryIn: time.Second},
				[]string{
					"halts_total{reason=unhealthy} +1", "partitions{state=assigned} -1", "partitions{state=halted} +1",
					"partition_halted{group=g,topic=orders,partition=3,reason=unhealthy} +1",
				},
			},
			{
				consumer.Behind{Partition: at, Next: 31, Lag: 1008},
				[]string{"lag_messages +1004", "partition_lag_messages" + ofPartition + " +1004"},
			},
			{
				consumer.Behind{Partition: at, Next: 31, Lag: -1}, // the broker is gone: not known, and not 0
				[]string{"lag_messages -1008", "partitions_lag_unknown +1", "partition_lag_messages" + ofPartition + " -1008"},
			},
			{
				consumer.Behind{Partition: at, Next: 31, Lag: 4},
				[]string{"lag_messages +4", "partitions_lag_unknown -1", "partition_lag_messages" + ofPartition + " +4"},
			},
			{consumer.WentBack{Was: fence(7, 31, "a"), Now: fence(6, 10, "a")}, []string{"sink_went_back_total +1"}},
			{consumer.Overdue{Partition: at}, []string{"overdue_transactions_total +1", "hung_calls{function=handler} +1"}},
			{
				consumer.SnapshotsHeld{Oldest: []operate.Snapshot{
					{Holder: operate.HolderSlot, Transactions: 7}, {Holder: operate.HolderSession, Transactions: 3}, {Holder: operate.HolderSlot, Transactions: 5}, // of two databases
				}},
				[]string{"snapshot_age_transactions{holder=replication_slot} +7", "snapshot_age_transactions{holder=session} +3"},
			},
			{consumer.SnapshotsHeld{}, []string{"snapshot_age_transactions{holder=replication_slot} -7", "snapshot_age_transactions{holder=session} -3"}},
			{consumer.Deferring{Messages: 3}, []string{"messages_deferred +3"}},
			{consumer.Deferring{}, []string{"messages_deferred -3"}},
			{consumer.Suspected{Name: "b", Gone: true}, []string{"suspicions_total{reason=gone} +1"}},
			{consumer.Suspected{Name: "b"}, []string{"suspicions_total{reason=silent} +1"}},
			{consumer.SuspicionWrong{}, []string{"wrong_suspicions_total +1"}},
			{consumer.Returned{Partition: at}, []string{"hung_calls{function=handler} -1"}},
			{outbox.Event{Kind: outbox.Delivered}, []string{"outbox_deliveries_total{kind=delivered} +1"}},
			{
				outbox.Event{Kind: outbox.Fenced, Sent: outbox.Sent{Partition: at, Epoch: 7}, Highest: 9},
				[]string{"outbox_deliveries_total{kind=fenced} +1", "fence_rejects_total{reason=stale,stage=receiver} +1", "token_gap_count +1", "token_gap_sum +2"},
			},
			{
				outbox.Backlog{Partition: at, Entries: 12, Oldest: time.Now().Add(-time.Minute)},
				[]string{"outbox_entries +12", "outbox_oldest_entry_age_seconds +60"},
			},
			{httpfence.Event{Outcome: httpfence.KeyReused, Took: time.Second}, []string{"receiver_requests_total{outcome=key_reused} +1", "receiver_duration_seconds_count +1", "receiver_duration_seconds_sum +1"}},
			{guard.Event{Decision: guard.Changed, Stamp: guard.Stamp{Epoch: 7}, Seen: 3}, []string{"item_decisions_total{decision=changed} +1"}},
			{
				guard.Event{Decision: guard.Stale, Stamp: guard.Stamp{Epoch: 7}, Seen: 10},
				[]string{"item_decisions_total{decision=stale} +1", "fence_rejects_total{reason=stale,stage=item} +1", "token_gap_count +1", "token_gap_sum +3"},
			},
			{guard.Event{Decision: guard.InDoubt, Stamp: guard.Stamp{Epoch: 7}, Seen: 10}, []string{"item_decisions_total{decision=in_doubt} +1"}},
			{
				consumer.Lost{Partition: at, Epoch: 7, Next: 31, Reason: consumer.ReasonLeaseExpired, InFlight: true},
				[]string{
					"tenures_lost_in_flight_total{cause=lease_expired} +1", "partitions{state=halted} -1", "lag_messages -4", "outbox_entries -12", "outbox_oldest_entry_age_seconds -60",
					"partition_halted{group=g,topic=orders,partition=3,reason=unhealthy} -1", "partition_lag_messages" + ofPartition + " -4",
					"partition_next_offset" + ofPartition + " -31", "partition_epoch" + ofPartition + " -7", "partition_newest_message_timestamp_seconds" + ofPartition + " -1000.5",
				},
			},
			{consumer.Left{}, []string{"member -1"}},
			{outbox.Backlog{Partition: at, Entries: 12}, nil}, // of a partition that is not held
			{consumer.Lost{Partition: at, Reason: consumer.ReasonLeaseTaken}, nil},
		} {
			before := values(s)
			switch e := step.event.(type) {
			case consumer.Event:
				s.Observe(e)
			case outbox.Event:
				s.ObserveOutbox(e)
			case outbox.Backlog:
				s.ObserveBacklog(e)
			case httpfence.Event:
				s.ObserveReceiver(e)
			case guard.Event:
				s.ObserveGuard(e)
			}
			want(t, fmt.Sprintf("%T", step.event), before, values(s), step.want...)
		}
	})
}

// Whatever there may be later, nothing is dropped silently.
func TestEachValueOfAnEventIsCountedSomewhere(t *testing.T) {
	changed := func(about any, observe func(s *stats.Stats)) {
		t.Helper()
		s := stats.New()
		observe(s)
		if len(values(s)) == 0 {
			t.Errorf("%v is counted nowhere", about)
		}
	}
	for _, r := range consumer.Reasons() {
		changed(r, func(s *stats.Stats) { s.Observe(consumer.Halted{Reason: r}) })
	}
	for o := consumer.OutcomeCommitted; !strings.HasPrefix(o.String(), "Outcome("); o++ {
		changed(o, func(s *stats.Stats) { s.Observe(consumer.Transacted{Outcome: o, Background: true}) })
	}
	for f := consumer.FailureError; !strings.HasPrefix(f.String(), "Failure("); f++ {
		s := stats.New()
		s.Observe(consumer.Transacted{Failure: f})
		if values(s)["handler_failures_total{kind="+f.String()+"}"] != 1 {
			t.Errorf("%v is not counted", f)
		}
	}
	for k := outbox.Delivered; !strings.HasPrefix(k.String(), "kind "); k++ {
		changed(k, func(s *stats.Stats) { s.ObserveOutbox(outbox.Event{Kind: k}) })
	}
	for o := httpfence.Applied; !strings.HasPrefix(o.String(), "outcome "); o++ {
		s := stats.New()
		s.ObserveReceiver(httpfence.Event{Outcome: o})
		if values(s)["receiver_requests_total{outcome="+strings.ReplaceAll(o.String(), " ", "_")+"}"] != 1 {
			t.Errorf("%v is not counted", o)
		}
	}
	for d := guard.Changed; !strings.HasPrefix(d.String(), "Decision("); d++ {
		s := stats.New()
		s.ObserveGuard(guard.Event{Decision: d})
		if values(s)["item_decisions_total{decision="+d.String()+"}"] != 1 {
			t.Errorf("%v is not counted", d)
		}
	}
	for _, r := range []consumer.Reason{consumer.ReasonLeaseTaken, consumer.ReasonLeaseExpired, consumer.ReasonDrainOverrun} {
		changed(r, func(s *stats.Stats) { s.Observe(consumer.Lost{Reason: r, InFlight: true}) })
	}
}

func TestTicksOfJobsAreCountedWhileTheJobIsHeld(t *testing.T) {
	const ofJob = "{group=g,topic=orders,partition=3}"
	s, job := stats.New(), fence(7, 20, "a")
	job.Log = operate.JobLog
	ticks := func() (missed, late float64, known bool) {
		now := values(s)
		late, known = now["job_late_seconds"+ofJob]
		return now["job_ticks_missed_total"+ofJob], late, known
	}
	for i, step := range []struct {
		event        consumer.Event
		missed, late float64
	}{
		{consumer.Claimed{Fence: job}, 0, 0},
		{consumer.Advanced{Partition: at, Messages: 1, Missed: 2, Late: time.Minute}, 2, 60},
		{consumer.Advanced{Partition: at, Missed: 3}, 5, 60}, // none of them is run
		{consumer.Claimed{Fence: job}, 5, 60},
		{consumer.Advanced{Partition: at, Messages: 1}, 5, 0},
	} {
		if i == 0 {
			s.Observe(consumer.Granted{Partition: at})
		}
		s.Observe(step.event)
		if missed, late, _ := ticks(); missed != step.missed || late != step.late {
			t.Errorf("after %+v: %v missed, %v s late", step.event, missed, late)
		}
	}
	s.Observe(consumer.Drained{Partition: at})
	if _, _, known := ticks(); known {
		t.Error("a job that is not held has series")
	}
}

func TestAProcessHasNoMoreSeriesThanItMay(t *testing.T) {
	for _, log := range []string{"", operate.JobLog} {
		t.Run(log, func(t *testing.T) { hasNoMoreSeriesThanItMay(t, log) })
	}
}

func hasNoMoreSeriesThanItMay(t *testing.T, log string) {
	s := stats.New()
	const partitions = 5000
	for n := range int32(100) {
		s.ObserveLease(lease.Acquired{Resource: lease.Resource{Name: "cart", Number: n}})
	}
	for n := range int32(partitions) {
		p := epoch.Partition{Group: "g", Topic: "t", Number: n}
		s.Observe(consumer.Granted{Partition: p})
		s.Observe(consumer.Claimed{Fence: epoch.Fence{Origin: epoch.Origin{Partition: p, Log: log}, Epoch: 1}})
		s.Observe(consumer.Advanced{Partition: p, Epoch: 1, To: 1, Messages: 1, Lag: 1, Newest: time.Now()})
		if n >= 4900 {
			s.Observe(consumer.Halted{Partition: p, Epoch: 1, Next: 1, Reason: consumer.ReasonSink})
		}
	}
	series, halted := 0, 0
	var unlisted, behind float64
	listed, resources := map[string]bool{}, map[string]bool{}
	for _, f := range s.Read() {
		for _, v := range f.Samples {
			series++
			if f.Kind == stats.Histogram {
				series += len(f.Buckets) + 2 // and +Inf, the sum and the count
			}
			if f.PerResource() {
				resources[v.Labels[0]] = true
			}
			switch f.Name {
			case "epochfence_partition_halted":
				halted++
			case "epochfence_partition_epoch":
				listed[v.Labels[2]] = true
			case "epochfence_partitions_unlisted":
				unlisted = v.Value
			case "epochfence_lag_messages":
				behind = v.Value
			}
		}
	}
	if len(resources) != 20 || !resources[stats.OtherResources] {
		t.Errorf("%d resources are listed: %v", len(resources), resources)
	}
	if series > stats.MaxSeries || series < stats.MaxSeries*9/10 {
		t.Errorf("%d series, want at most %d, and no fewer than that takes", series, stats.MaxSeries)
	}
	if halted != 100 || unlisted != partitions-float64(len(listed)) || behind != partitions || !listed["0"] {
		t.Errorf("%d of 100 halted ones are listed, %d in all, %v not, behind by %v", halted, len(listed), unlisted, behind)
	}
}

func TestRatesAreThoseOfTheLastSeconds(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := stats.New()
		s.Observe(consumer.Granted{Partition: at})
		for range 600 { // a minute
			<-time.After(100 * time.Millisecond)
			s.Observe(consumer.Advanced{Partition: at, Messages: 10, Bytes: 1000})
		}
		if m, b := s.Rates(); m < 98 || m > 102 || b < 9800 || b > 10200 {
			t.Errorf("%.1f messages and %.1f bytes in a second, want 100 and 10,000", m, b)
		}
		if p := s.Partitions()[0]; p.MessagesPerSecond < 98 || p.MessagesPerSecond > 102 {
			t.Errorf("%.1f messages of the partition in a second, want 100", p.MessagesPerSecond)
		}
		<-time.After(time.Minute)
		if m, _ := s.Rates(); m > 1 {
			t.Errorf("%.1f messages in a second after a minute without any", m)
		}
	})
}

func TestTheTimelineTellsATakeoverARefusalAndAHalt(t *testing.T) {
	s := stats.New()
	why := errors.New(strings.Repeat("é", 10_000))
	for _, e := range []consumer.Event{
		consumer.Joined{},
		consumer.Granted{Partition: at},
		consumer.Claimed{Fence: fence(1, 0, "a")},                         // the first claim of all
		consumer.Claimed{Fence: fence(2, 0, "a"), Seen: fence(1, 0, "a")}, // our own again
		consumer.Claimed{Fence: fence(4, 0, "a"), Seen: fence(3, 0, "operator anna")},
		consumer.Claimed{Fence: fence(7, 20, "a"), Seen: fence(6, 20, "b")}, // a takeover
		consumer.Advanced{Partition: at, Epoch: 7, To: 30},
		consumer.Halted{Partition: at, Epoch: 7, Next: 30, Reason: consumer.ReasonMessageFailed, Err: why},
		consumer.Halted{Partition: at, Epoch: 7, Next: 30, Reason: consumer.ReasonMessageFailed, Err: why}, // once more
		consumer.Halted{Partition: at, Epoch: 7, Next: 30, Reason: consumer.ReasonSink, Err: &consumer.PanicError{Value: "oh", Stack: []byte("goroutine 1")}},
		consumer.Advanced{Partition: at, Epoch: 7, To: 40},
		consumer.Advanced{Partition: at, Epoch: 7, To: 50},
		consumer.Stale{Ours: fence(7, 50, "a"), Held: fence(8, 50, "c")},
		consumer.Lost{Partition: at, Epoch: 7, Next: 50, Reason: consumer.ReasonLeaseTaken, Cause: consumer.ErrLost},
		consumer.Suspected{Name: "b", Host: "bob"},
		consumer.SuspicionWrong{Suspected: consumer.Suspected{Name: "b", Host: "bob"}},
	} {
		s.Observe(e)
	}
	var got []string
	for _, m := range slices.Backward(s.Timeline()) {
		if m.At.IsZero() {
			t.Errorf("%+v", m)
		}
		got = append(got, fmt.Sprintf("%v %d@%d %d%s %v %.20s", m.Kind, m.Epoch, m.Next, m.OtherEpoch, m.OtherOwner, m.Reason, m.Text))
		if n := len([]rune(m.Text)); n > 501 {
			t.Errorf("a text of %d characters", n)
		}
	}
	want := []string{
		"joined 0@-1 0 none ",
		"takeover 7@20 6b none ",
		"halted 7@30 0 message_failed " + strings.Repeat("é", 20),
		"halted 7@30 0 sink panic: oh",
		"continues 7@40 0 sink ",
		"refused 7@50 8c stale ",
		"lost 7@50 0 lease_taken lease lost",
		"suspected 0@-1 0b none b on bob (member ): ",
		"suspicion was wrong 0@-1 0b none b on bob lives, afte",
	}
	if !slices.Equal(got, want) {
		t.Errorf("\n got %s\nwant %s", strings.Join(got, "\n     "), strings.Join(want, "\n     "))
	}
}

func TestTheTimelineKeepsTheNewest(t *testing.T) {
	s := stats.New()
	for e := range epoch.Epoch(2500) {
		s.Observe(consumer.Lost{Partition: at, Epoch: e + 1, Reason: consumer.ReasonLeaseTaken})
	}
	ms := s.Timeline()
	if len(ms) != 1000 || ms[0].Epoch != 2500 || ms[999].Epoch != 1501 {
		t.Errorf("%d moments, from %d to %d", len(ms), ms[0].Epoch, ms[len(ms)-1].Epoch)
	}
}

func TestChangedIsClosedByTheNextEvent(t *testing.T) {
	s := stats.New()
	changed := s.Changed()
	if s.Changed() != changed {
		t.Error("two channels for one change")
	}
	select {
	case <-changed:
		t.Error("closed before an event")
	default:
	}
	s.Observe(consumer.Joined{})
	<-changed
	if s.Changed() == changed {
		t.Error("the channel of the change before")
	}
}

func TestAFeedGetsEachObservation(t *testing.T) {
	s := stats.New()
	var got []string
	s.Feed(func(m *stats.Metric, labels []string, x float64) {
		got = append(got, fmt.Sprint(m.Name, labels, " ", x))
	})
	s.ObserveLease(lease.Worked{Resource: lease.Resource{Name: "nightly"}, Took: time.Second, TTL: 4 * time.Second, Gap: 3})
	s.Observe(consumer.Transacted{Took: time.Second, Handling: time.Second / 2})
	s.Observe(consumer.Joined{})
	want := []string{
		"epochfence_lease_work_ttl_ratio[nightly/0] 0.25", "epochfence_lease_token_gap[nightly/0 claimed] 3",
		"epochfence_transaction_duration_seconds[] 1", "epochfence_handler_duration_seconds[] 0.5",
	}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// The whole way: what a consumer does, and not what a test says it does.
func TestAConsumerThatIsTakenOverIsSeenFromBothSides(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		log, sink := memsource.New("orders", 1), memsink.New()
		group := log.Group(memsource.DefaultGroup)
		run := func(name string, handle consumer.Handler[*memsink.Tx]) (*stats.Stats, *memsource.Member, func()) {
			s, m := stats.New(), group.Member(name)
			ctx, stop := context.WithCancel(t.Context())
			done := make(chan error)
			go func() {
				done <- consumer.Run(ctx, m, sink.Open(), consumer.Each(handle), consumer.Options{
					Observe: s.Observe, Logger: slog.New(slog.DiscardHandler), HangTimeout: time.Hour, // what stands for a freeze is no hang
				})
			}()
			return s, m, func() {
				stop()
				if err := <-done; err != nil {
					t.Error(err)
				}
			}
		}
		frozen := make(chan struct{})
		a, zombie, endA := run("a", func(_ context.Context, _ *memsink.Tx, m consumer.Message, _ epoch.Epoch) error {
			if m.Offset == 2 {
				<-frozen // deaf to everything
			}
			return nil
		})
		synctest.Wait()
		log.Append(0, "0", "1")
		synctest.Wait()
		if err := a.Status().Ready(); err != nil {
			t.Error(err)
		}
		log.Append(0, "2")
		synctest.Wait() // its transaction is open
		zombie.Freeze()
		<-time.After(time.Second)
		b, _, endB := run("b", func(context.Context, *memsink.Tx, consumer.Message, epoch.Epoch) error { return nil })
		<-time.After(5 * time.Minute)
		zombie.Thaw()
		synctest.Wait() // it has heard: a handler that returns before that fails for its time alone
		close(frozen)
		<-time.After(time.Minute)
		endA()
		endB()
		if v := values(a); v["messages_total"] != 2 || v["transactions_total{outcome=committed}"] != 1 ||
			v["fence_rejects_total{reason=stale,stage=commit}"]+v["transactions_total{outcome=lost}"]+v["tenures_lost_in_flight_total{cause=lease_expired}"] == 0 {
			t.Errorf("the zombie: %v", v)
		}
		if v := values(b); v["messages_total"] != 1 || v["claims_total{outcome=claimed}"] == 0 || v["unfenced_writes_total{where=handler}"] != 0 {
			t.Errorf("its successor: %v", v)
		}
		if !slices.ContainsFunc(b.Timeline(), func(m stats.Moment) bool { return m.Kind == stats.Takeover && m.OtherOwner == "a" && m.Next == 2 }) {
			t.Errorf("no takeover: %+v", b.Timeline())
		}
	})
}
