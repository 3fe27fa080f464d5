package stats

import (
	"errors"
	"fmt"
	"strings"

	"github.com/epochfence/epochfence/cas/guard"
	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/lease"
	"github.com/epochfence/epochfence/operate"
	"github.com/epochfence/epochfence/outbox"
	"github.com/epochfence/epochfence/outbox/httpfence"
)

// This file is the only table of metrics: names, labels, series, buckets and texts. Exporters, the
// dashboard and docs/operating.md read it.

const (
	claims = iota
	claimDuration
	fenceRejects
	tokenGap
	tenuresLostInFlight
	unfencedWrites
	messages
	messageBytes
	transactions
	transactionDuration
	handlerDuration
	handlerFailures
	deadLetters
	deferredMessages
	deferredNow
	applyDelay
	halts
	sinkWentBack
	overdue
	hungCalls
	snapshotAge
	suspicions
	wrongSuspicions
	member
	partitions
	partitionsUnlisted
	lag
	lagUnknown
	partitionLag
	partitionNext
	partitionEpoch
	partitionHalted
	partitionNewest
	jobMissed
	jobLate
	outboxDeliveries
	outboxEntries
	outboxOldest
	receiverRequests
	receiverDuration
	itemDecisions
	leaseAcquisitions
	leaseAcquire
	leaseWaiting
	leaseWaited
	leasesHeld
	leaseHeldFor
	leaseRenewals
	leasesLostWorking
	leaseWork
	leaseWorkRatio
	leaseRejects
	leaseTokenGap
	rows
)

// MaxSeries limits the series of one [Stats], counting the buckets, sums and counts of histograms.
const MaxSeries = 2500

var (
	short = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10}
	waits = []float64{.01, .1, 1, 5, 15, 60, 300, 1800}
	long  = []float64{.01, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 3600}

	one         = [][]string{{}}
	ofPartition = []string{"group", "topic", "partition"}
	ofResource  = []string{"resource"}
)

var table = [rows]Metric{
	claims: {Name: "epochfence_claims_total", Kind: Counter, Unit: "{claim}", KnownAs: "lock_acquire_success_total (outcome claimed)",
		Help: "Attempts to claim a partition, by outcome: claimed; raced (another claim came first); not_confirmed (the source did not confirm the lease); " +
			"refused (until an operator acts); failed (the sink or the source failed).",
		Labels: []string{"outcome"}, Series: each(claimOutcomes...)},
	claimDuration: {Name: "epochfence_claim_duration_seconds", Kind: Histogram, Unit: "s", KnownAs: "lock_acquire_latency_ms",
		Help:   "Time from the grant of a partition, or the end of its previous claim, to the next claim, including failed attempts.",
		Series: one, Buckets: long},
	fenceRejects: {Name: "epochfence_fence_rejects_total", Kind: Counter, Unit: "{refusal}", KnownAs: "fencing_reject_total",
		Help: "Refusals by a fence, by reason and stage: claim; commit (of messages); background (a transaction of Handlers.Background); " +
			"receiver (a request that the outbox sent); item (a change that an item of package guard or cassink refused).",
		Labels: []string{"reason", "stage"},
		Series: each("stale claim", "log_changed claim", "foreign_lease claim", "missing_fence claim", "stale commit", "moved commit", "missing_fence commit", "stale background", "missing_fence background", "stale receiver", "stale item")},
	tokenGap: {Name: "epochfence_token_gap", Kind: Histogram, Unit: "{epoch}", KnownAs: "token_gap",
		Help:   "Difference between the epoch of the fence, receiver or item and the lower epoch of what it refused as stale.",
		Series: one, Buckets: []float64{1, 2, 3, 5, 10, 100, 1000}},
	tenuresLostInFlight: {Name: "epochfence_tenures_lost_in_flight_total", Kind: Counter, Unit: "{tenure}", KnownAs: "lease_expired_while_executing_total",
		Help:   "Partitions that were lost while they had a transaction open, by cause.",
		Labels: []string{"cause"},
		Series: each(consumer.ReasonLeaseTaken.String(), consumer.ReasonLeaseExpired.String(), consumer.ReasonDrainOverrun.String(), consumer.ReasonHung.String())},
	unfencedWrites: {Name: "epochfence_unfenced_writes_total", Kind: Counter, Unit: "{transaction}", KnownAs: "critical_write_without_token_total",
		Help:   "Transactions that a handler, background work or the work of a lock ended by itself. They may have committed without the fence. Must be 0.",
		Labels: []string{"where"}, Series: each("handler", "background", "lock")},
	messages: {Name: "epochfence_messages_total", Kind: Counter, Unit: "{message}",
		Help: "Messages applied, including those that OnFailure took. Messages of a commit whose answer was lost are not counted.", Series: one},
	messageBytes: {Name: "epochfence_message_bytes_total", Kind: Counter, Unit: "By",
		Help: "Bytes of the keys, values and headers of the applied messages.", Series: one},
	transactions: {Name: "epochfence_transactions_total", Kind: Counter, Unit: "{transaction}",
		Help: "Transactions that ended, including those of Handlers.Background and without replays, by outcome: committed; refused (by a fence); failed (rolled back); " +
			"lost (with one of their partitions); in_doubt; deferred (rolled back for RetryAfter).",
		Labels: []string{"outcome"}, Series: words(consumer.OutcomeCommitted, consumer.OutcomeDeferred)},
	transactionDuration: {Name: "epochfence_transaction_duration_seconds", Kind: Histogram, Unit: "s",
		Help: "Duration of transactions of messages, from begin to their end, whatever the outcome.", Series: one, Buckets: short},
	handlerDuration: {Name: "epochfence_handler_duration_seconds", Kind: Histogram, Unit: "s",
		Help: "Time in handlers, summed over a transaction.", Series: one, Buckets: short},
	handlerFailures: {Name: "epochfence_handler_failures_total", Kind: Counter, Unit: "{failure}",
		Help:   "Transactions that were rolled back because a handler failed, by kind of failure.",
		Labels: []string{"kind"}, Series: words(consumer.FailureError, consumer.FailureUnhealthy)},
	deadLetters: {Name: "epochfence_dead_letters_total", Kind: Counter, Unit: "{message}",
		Help: "Messages that failed for good: those that OnFailure took, and deferred ones whose last replay failed.", Series: one},
	deferredMessages: {Name: "epochfence_deferred_messages_total", Kind: Counter, Unit: "{message}",
		Help: "Messages that consumer.RetryAfter has deferred.", Series: one},
	deferredNow: {Name: "epochfence_messages_deferred", Kind: Gauge, Unit: "{message}",
		Help: "Deferred messages of this process's partitions, counted once a minute among the group's first 1,000.", Series: one},
	applyDelay: {Name: "epochfence_apply_delay_seconds", Kind: Histogram, Unit: "s",
		Help: "Time from when a message was written to when it was applied: of the oldest message of each partition in a transaction.", Series: one, Buckets: long},
	halts: {Name: "epochfence_halts_total", Kind: Counter, Unit: "{halt}",
		Help:   "Halts of partitions, including each retry that failed, by reason.",
		Labels: []string{"reason"}, Series: reasons()},
	sinkWentBack: {Name: "epochfence_sink_went_back_total", Kind: Counter, Unit: "{partition}",
		Help: "Partitions whose fence went back: the sink lost transactions that it had committed, or the group has another sink.", Series: one},
	overdue: {Name: "epochfence_overdue_transactions_total", Kind: Counter, Unit: "{transaction}",
		Help: "Calls of the application's functions, and of the sink, that were abandoned because they did not return after their contexts had ended.", Series: one},
	hungCalls: {Name: "epochfence_hung_calls", Kind: Gauge, Unit: "{call}",
		Help:   "Abandoned calls that have not returned yet, by function.",
		Labels: []string{"function"}, Series: words(consumer.FunctionHandler, consumer.FunctionSink)},
	snapshotAge: {Name: "epochfence_snapshot_age_transactions", Kind: Gauge, Unit: "{transaction}",
		Help:   "Transactions that have begun since the oldest snapshot in the sink's PostgreSQL was taken, by its holder. 0 if none is held.",
		Labels: []string{"holder"}, Series: each(operate.HolderSession, operate.HolderPrepared, operate.HolderSlot)},
	suspicions: {Name: "epochfence_suspicions_total", Kind: Counter, Unit: "{process}",
		Help:   "Processes of the group that this process had removed because they seemed to have died, by reason: gone (the connection had ended); silent.",
		Labels: []string{"reason"}, Series: each(gone, silent)},
	wrongSuspicions: {Name: "epochfence_wrong_suspicions_total", Kind: Counter, Unit: "{process}",
		Help: "Processes that this process had removed and that lived: they signed again before their session timeout.", Series: one},
	member: {Name: "epochfence_member", Kind: Gauge, Unit: "{member}",
		Help: "1 while this process is a member of its consumer group or, without a consumer, of its group of leases. 0 otherwise.", Series: one},
	partitions: {Name: "epochfence_partitions", Kind: Gauge, Unit: "{partition}",
		Help:   "Partitions granted to this process, by state: claimed; halted; assigned (granted, and not claimed now).",
		Labels: []string{"state"},
		Series: each(consumer.StateAssigned.String(), consumer.StateClaimed.String(), consumer.StateHalted.String())},
	partitionsUnlisted: {Name: "epochfence_partitions_unlisted", Kind: Gauge, Unit: "{partition}",
		Help: "Partitions granted to this process that have no series of their own, to limit their number.", Series: one},
	lag: {Name: "epochfence_lag_messages", Kind: Gauge, Unit: "{message}",
		Help: "Messages still to apply, summed over the partitions granted to this process whose lag is known.", Series: one},
	lagUnknown: {Name: "epochfence_partitions_lag_unknown", Kind: Gauge, Unit: "{partition}",
		Help: "Partitions granted to this process whose lag is not known. epochfence_lag_messages leaves them out.", Series: one},
	partitionLag: {Name: "epochfence_partition_lag_messages", Kind: Gauge, Unit: "{message}",
		Help:   "Messages still to apply in a partition, as of the last read, or of the last request to the source (every 10 s while the partition is halted). Absent while unknown.",
		Labels: ofPartition},
	partitionNext: {Name: "epochfence_partition_next_offset", Kind: Gauge, Unit: "{offset}",
		Help: "Offset of the next message to apply. Absent before the first claim.", Labels: ofPartition},
	partitionEpoch: {Name: "epochfence_partition_epoch", Kind: Gauge, Unit: "{epoch}",
		Help: "Epoch of the last claim of the partition by this process.", Labels: ofPartition},
	partitionHalted: {Name: "epochfence_partition_halted", Kind: Gauge, Unit: "{partition}",
		Help:   "1 for a partition that is halted, by reason. Absent otherwise.",
		Labels: append(ofPartition[:3:3], "reason")},
	partitionNewest: {Name: "epochfence_partition_newest_message_timestamp_seconds", Kind: Gauge, Unit: "s",
		Help: "When the last applied message was written, in seconds since 1970; of a job (topic), the time of its last tick.", Labels: ofPartition},
	jobMissed: {Name: "epochfence_job_ticks_missed_total", Kind: Counter, Unit: "{tick}",
		Help:   "Ticks of a job (topic) that no process ran in time and that are left out, since this process has the job. Those that OverrunSkip leaves out are not counted.",
		Labels: ofPartition},
	jobLate: {Name: "epochfence_job_late_seconds", Kind: Gauge, Unit: "s",
		Help: "How long after its time (and Jitter) the last tick of a job (topic) began. 0 before the first.", Labels: ofPartition},
	outboxDeliveries: {Name: "epochfence_outbox_deliveries_total", Kind: Counter, Unit: "{attempt}",
		Help:   "Attempts to deliver an entry of the outbox, by outcome: delivered; refused (for good); retrying; fenced (the receiver knows a higher epoch).",
		Labels: []string{"kind"}, Series: each(outbox.Delivered.String(), outbox.Refused.String(), outbox.Retrying.String(), outbox.Fenced.String())},
	outboxEntries: {Name: "epochfence_outbox_entries", Kind: Gauge, Unit: "{entry}",
		Help: "Entries in the outbox of the partitions granted to this process, counted up to 10,000 for each.", Series: one},
	outboxOldest: {Name: "epochfence_outbox_oldest_entry_age_seconds", Kind: Gauge, Unit: "s",
		Help: "Age of the oldest entry in the outbox of the partitions granted to this process, or 0 if there is none.", Series: one},
	receiverRequests: {Name: "epochfence_receiver_requests_total", Kind: Counter, Unit: "{request}",
		Help:   "Requests to a receiver of this process, by outcome.",
		Labels: []string{"outcome"}, Series: receiverOutcomes()},
	receiverDuration: {Name: "epochfence_receiver_duration_seconds", Kind: Histogram, Unit: "s",
		Help: "Time from the arrival of a request at a receiver of this process to its answer, including the wait for its turn.", Series: one, Buckets: short},
	itemDecisions: {Name: "epochfence_item_decisions_total", Kind: Counter, Unit: "{decision}",
		Help: "Decisions about changes of items (package guard, cassink): changed; repeated (the message had changed the item before); in_doubt (the answer to the write was lost); " +
			"and refusals: stale (a later owner has changed the item); passed (a later message has); truncated, other_log and fence_lost (until an operator acts); omitted (the message is applied again and would change an item that it left alone the first time, and a later message has changed the item since); too_many_partitions (more than an item can have).",
		Labels: []string{"decision"}, Series: words(guard.Changed, guard.InDoubt)},
	leaseAcquisitions: {Name: "epochfence_lease_acquisitions_total", Kind: Counter, Unit: "{acquisition}", KnownAs: "lock_acquire_success_total (outcome acquired)",
		Help:   "Attempts to acquire a lease, by outcome: acquired; held (TryAcquire did not get it); failed (TryAcquire got no answer from the store); gave_up (the context of Acquire ended); closed (the member was closed).",
		Labels: append(ofResource[:1:1], "outcome"), Series: each(acquired, held, failed, gaveUp, closed)},
	leaseAcquire: {Name: "epochfence_lease_acquire_duration_seconds", Kind: Histogram, Unit: "s", KnownAs: "lock_acquire_latency_ms",
		Help:   "Time from a call of Acquire or TryAcquire until it had the lease; for a lease of Run, the duration of the request.",
		Labels: ofResource, Series: one, Buckets: waits},
	leaseWaiting: {Name: "epochfence_lease_waiting", Kind: Gauge, Unit: "{call}",
		Help: "Calls of Acquire in this process that wait for the lease now.", Labels: ofResource, Series: one},
	leaseWaited: {Name: "epochfence_lease_wait_seconds_total", Kind: Counter, Unit: "s", KnownAs: "contention_hotspots (its rate, the highest ten)",
		Help: "Time that calls of Acquire in this process have waited for the lease, summed over the calls, including those that still wait.", Labels: ofResource, Series: one},
	leasesHeld: {Name: "epochfence_leases_held", Kind: Gauge, Unit: "{lease}",
		Help: "Leases of the resource that this process holds: 1 or 0, and the number of them for (other).", Labels: ofResource, Series: one},
	leaseHeldFor: {Name: "epochfence_lease_held_duration_seconds", Kind: Histogram, Unit: "s",
		Help: "Time for which a lease was held, observed when it was released or lost.", Labels: ofResource, Series: one, Buckets: waits},
	leaseRenewals: {Name: "epochfence_lease_renewals_total", Kind: Counter, Unit: "{renewal}",
		Help: "Acknowledged renewals of the registration while this process held the lease.", Labels: ofResource, Series: one},
	leasesLostWorking: {Name: "epochfence_leases_lost_working_total", Kind: Counter, Unit: "{lease}", KnownAs: "lease_expired_while_executing_total",
		Help:   "Leases that were lost while their holder was at work, by cause: during Claimed.Do or, for a lock that was not claimed, before its release.",
		Labels: append(ofResource[:1:1], "cause"), Series: words(lease.ReasonExpired, lease.ReasonClosed)},
	leaseWork: {Name: "epochfence_lease_work_total", Kind: Counter, Unit: "{transaction}",
		Help: "Transactions of Claimed.Do that ended, by outcome: committed; refused (by the fence, or by a system that knows a higher epoch); failed (rolled back); " +
			"lost (with the lease); in_doubt (the answer to the commit was lost, and Claimed.Do finds out what became of it); unfenced (the work ended the transaction by itself).",
		Labels: append(ofResource[:1:1], "outcome"), Series: words(lease.OutcomeCommitted, lease.OutcomeUnfenced)},
	leaseWorkRatio: {Name: "epochfence_lease_work_ttl_ratio", Kind: Histogram, Unit: "1",
		Help:   "Duration of a transaction of Claimed.Do, from begin to its end and whatever the outcome, divided by the TTL of the lease.",
		Labels: ofResource, Series: one, Buckets: []float64{.1, .25, .5, .75, 1, 2}},
	leaseRejects: {Name: "epochfence_lease_rejects_total", Kind: Counter, Unit: "{refusal}", KnownAs: "fencing_reject_total",
		Help:   "Refusals of a lock's claim, or of its work at the commit, by the fence or by a system that knows a higher epoch (low_epoch).",
		Labels: append(ofResource[:1:1], "reason", "stage"),
		Series: each(lease.RefusalStale.String()+" claim", lease.RefusalMissing.String()+" claim", lease.RefusalLogChanged.String()+" claim", lease.RefusalForeignLease.String()+" claim",
			lease.RefusalStale.String()+" commit", lease.RefusalMoved.String()+" commit", lease.RefusalLowEpoch.String()+" commit", lease.RefusalMissing.String()+" commit")},
	leaseTokenGap: {Name: "epochfence_lease_token_gap", Kind: Histogram, Unit: "{epoch}", KnownAs: "token_gap",
		Help: "Difference of two epochs, observed at the end of a transaction of Claimed.Do. Outcome claimed (it was not refused): the epoch of its claim minus that of the claim before it, or 0 if there was none. " +
			"Outcome refused (as stale, or by a system that knows a higher epoch): the epoch that caused the refusal minus that of its claim.",
		Labels: append(ofResource[:1:1], "outcome"), Series: each(claimed, refused), Buckets: []float64{1, 3, 10, 100, 1000, 100_000}},
}

const (
	claimed      = "claimed"
	raced        = "raced"
	notConfirmed = "not_confirmed"
	refused      = "refused"
	failed       = "failed"
)

const (
	gone   = "gone"
	silent = "silent"
)

const (
	acquired = "acquired"
	held     = "held"
	gaveUp   = "gave_up"
	closed   = "closed"
)

func acquireOutcome(err error) string {
	switch {
	case errors.Is(err, lease.ErrHeld):
		return held
	case errors.Is(err, lease.ErrClosed):
		return closed
	case errors.Is(err, lease.ErrUnanswered):
		return failed
	default:
		return gaveUp
	}
}

var claimOutcomes = []string{claimed, raced, notConfirmed, refused, failed}

func claimOutcome(r consumer.Reason) string {
	switch {
	case r == consumer.ReasonStale:
		return raced
	case r == consumer.ReasonNotConfirmed:
		return notConfirmed
	case r.NeedsOperator(), r == consumer.ReasonPaused:
		return refused
	default:
		return failed
	}
}

func receiverOutcome(o httpfence.Outcome) string {
	if o == httpfence.KeyReused {
		return "key_reused"
	}
	return o.String()
}

func receiverOutcomes() (series [][]string) {
	for o := httpfence.Applied; o <= httpfence.Failed; o++ {
		series = append(series, []string{receiverOutcome(o)})
	}
	return series
}

func reasons() (series [][]string) {
	for _, r := range consumer.Reasons() {
		series = append(series, []string{r.String()})
	}
	return series
}

// each returns a series for each value, which has a label or several between spaces.
func each(values ...string) (series [][]string) {
	for _, v := range values {
		series = append(series, strings.Fields(v))
	}
	return series
}

// words returns a series for each value in [from, to].
func words[T interface {
	~uint8
	fmt.Stringer
}](from, to T) (series [][]string) {
	for v := from; v <= to; v++ {
		series = append(series, []string{v.String()})
	}
	return series
}
