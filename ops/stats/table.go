package stats

import (
	"fmt"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/httpfence"
	"github.com/epochfence/epochfence/outbox"
)

// The rows of the table.
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
	applyDelay
	halts
	sinkWentBack
	overdue
	hungCalls
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
	outboxDeliveries
	outboxEntries
	outboxOldest
	receiverRequests
	receiverDuration
	rows
)

// MaxSeries is how many series a process has at most, the buckets, sums and counts of
// histograms among them.
const MaxSeries = 1000

var (
	short = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10}
	long  = []float64{.01, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 3600}

	one         = [][]string{{}}
	ofPartition = []string{"group", "topic", "partition"}
)

var table = [rows]Metric{
	claims: {
		Name: "epochfence_claims_total", Kind: Counter, Unit: "{claim}", KnownAs: "lock_acquire_success_total (outcome claimed)",
		Help: "Attempts to claim a partition: claimed; raced, where another claim came first; not_confirmed by the source; " +
			"refused, until an operator does something; failed, as the sink or the source did.",
		Labels: []string{"outcome"}, Series: each(claimOutcomes...),
	},
	claimDuration: {
		Name: "epochfence_claim_duration_seconds", Kind: Histogram, Unit: "s", KnownAs: "lock_acquire_latency_ms",
		Help:   "Time from the grant of a partition, or the end of the claim before, to its claim, over all attempts.",
		Series: one, Buckets: long,
	},
	fenceRejects: {
		Name: "epochfence_fence_rejects_total", Kind: Counter, Unit: "{refusal}", KnownAs: "fencing_reject_total",
		Help: "What this process tried and a fence refused, by reason, and by stage: a claim, the commit of messages, a transaction in the background, " +
			"or a request of the outbox at its receiver.",
		Labels: []string{"reason", "stage"},
		Series: [][]string{
			{"stale", "claim"},
			{"log_changed", "claim"},
			{"foreign_lease", "claim"},
			{"missing_fence", "claim"},
			{"stale", "commit"},
			{"moved", "commit"},
			{"missing_fence", "commit"},
			{"stale", "background"},
			{"missing_fence", "background"},
			{"stale", "receiver"},
		},
	},
	tokenGap: {
		Name: "epochfence_token_gap", Kind: Histogram, Unit: "{epoch}", KnownAs: "token_gap",
		Help:   "By how much the epoch that the fence, or a receiver, knew was above that of what it refused as stale.",
		Series: one, Buckets: []float64{1, 2, 3, 5, 10, 100, 1000},
	},
	tenuresLostInFlight: {
		Name: "epochfence_tenures_lost_in_flight_total", Kind: Counter, Unit: "{tenure}", KnownAs: "lease_expired_while_executing_total",
		Help:   "Partitions that were lost while a transaction of theirs was under way.",
		Labels: []string{"cause"},
		Series: each(consumer.ReasonLeaseTaken.String(), consumer.ReasonLeaseExpired.String(), consumer.ReasonDrainOverrun.String(), consumer.ReasonHung.String()),
	},
	unfencedWrites: {
		Name: "epochfence_unfenced_writes_total", Kind: Counter, Unit: "{transaction}", KnownAs: "critical_write_without_token_total",
		Help:   "Transactions that a handler, or background work, ended by itself, so that they may have committed without the fence. Must be 0.",
		Labels: []string{"where"}, Series: each("handler", "background"),
	},
	messages: {
		Name: "epochfence_messages_total", Kind: Counter, Unit: "{message}",
		Help: "Messages that were applied, each once, those that OnFailure took among them.", Series: one,
	},
	messageBytes: {
		Name: "epochfence_message_bytes_total", Kind: Counter, Unit: "By",
		Help: "Bytes of the keys, values and headers of the messages that were applied.", Series: one,
	},
	transactions: {
		Name: "epochfence_transactions_total", Kind: Counter, Unit: "{transaction}",
		Help: "Transactions that have ended, those in the background too: committed; refused by a fence; failed, so that they were rolled back; " +
			"lost with one of their partitions; in_doubt.",
		Labels: []string{"outcome"}, Series: words(consumer.OutcomeCommitted, consumer.OutcomeInDoubt),
	},
	transactionDuration: {
		Name: "epochfence_transaction_duration_seconds", Kind: Histogram, Unit: "s",
		Help: "Time of transactions of messages, whatever came of them, from begin to commit.", Series: one, Buckets: short,
	},
	handlerDuration: {
		Name: "epochfence_handler_duration_seconds", Kind: Histogram, Unit: "s",
		Help: "Time that handlers took, all of one transaction together.", Series: one, Buckets: short,
	},
	handlerFailures: {
		Name: "epochfence_handler_failures_total", Kind: Counter, Unit: "{failure}",
		Help:   "Transactions that a handler's failure rolled back, by how it failed.",
		Labels: []string{"kind"}, Series: words(consumer.FailureError, consumer.FailureUnhealthy),
	},
	deadLetters: {
		Name: "epochfence_dead_letters_total", Kind: Counter, Unit: "{message}",
		Help: "Messages that were given up and handed to OnFailure, which took them.", Series: one,
	},
	applyDelay: {
		Name: "epochfence_apply_delay_seconds", Kind: Histogram, Unit: "s",
		Help: "Time from when the oldest message that a transaction took of a partition was written to when it was applied.", Series: one, Buckets: long,
	},
	halts: {
		Name: "epochfence_halts_total", Kind: Counter, Unit: "{halt}",
		Help:   "Times a partition was reported as halted, each retry that failed among them, by reason.",
		Labels: []string{"reason"}, Series: reasons(),
	},
	sinkWentBack: {
		Name: "epochfence_sink_went_back_total", Kind: Counter, Unit: "{partition}",
		Help: "Partitions whose fence was found behind where it had been: the sink lost transactions that it had committed.", Series: one,
	},
	overdue: {
		Name: "epochfence_overdue_transactions_total", Kind: Counter, Unit: "{transaction}",
		Help: "Calls of the application's functions that were abandoned, as they did not return after their contexts had ended.", Series: one,
	},
	hungCalls: {
		Name: "epochfence_hung_calls", Kind: Gauge, Unit: "{call}",
		Help:   "Calls that were abandoned and have not returned yet, by the function that hangs.",
		Labels: []string{"function"}, Series: words(consumer.FunctionHandler, consumer.FunctionSink),
	},
	member: {
		Name: "epochfence_member", Kind: Gauge, Unit: "1",
		Help: "1 while this process is a member of its group, 0 otherwise.", Series: one,
	},
	partitions: {
		Name: "epochfence_partitions", Kind: Gauge, Unit: "{partition}",
		Help:   "Partitions that this process holds: claimed; halted; or held, without a claim that is known to hold.",
		Labels: []string{"state"},
		Series: each(consumer.StateHeld.String(), consumer.StateClaimed.String(), consumer.StateHalted.String()),
	},
	partitionsUnlisted: {
		Name: "epochfence_partitions_unlisted", Kind: Gauge, Unit: "{partition}",
		Help: "Partitions that this process holds and of which it gives no series, lest there be too many.", Series: one,
	},
	lag: {
		Name: "epochfence_lag_messages", Kind: Gauge, Unit: "{message}",
		Help: "Messages to apply in all partitions that this process holds and whose lag is known.", Series: one,
	},
	lagUnknown: {
		Name: "epochfence_partitions_lag_unknown", Kind: Gauge, Unit: "{partition}",
		Help: "Partitions that this process holds whose lag is not known, so that epochfence_lag_messages leaves them out.", Series: one,
	},
	partitionLag: {
		Name: "epochfence_partition_lag_messages", Kind: Gauge, Unit: "{message}",
		Help:   "Messages to apply in a partition, as far as the source knew when it read last, or was asked: every 10 s while it is halted. There is none while that is not known.",
		Labels: ofPartition,
	},
	partitionNext: {
		Name: "epochfence_partition_next_offset", Kind: Gauge, Unit: "{offset}",
		Help: "Offset of the next message to apply. There is none before the first claim.", Labels: ofPartition,
	},
	partitionEpoch: {
		Name: "epochfence_partition_epoch", Kind: Gauge, Unit: "{epoch}",
		Help: "Epoch of this process's last claim of a partition.", Labels: ofPartition,
	},
	partitionHalted: {
		Name: "epochfence_partition_halted", Kind: Gauge, Unit: "1",
		Help:   "1 for a partition that has halted, with the reason. There is none of one that continues.",
		Labels: append(ofPartition[:3:3], "reason"),
	},
	partitionNewest: {
		Name: "epochfence_partition_newest_message_timestamp_seconds", Kind: Gauge, Unit: "s",
		Help: "When the last message that was applied was written, in seconds since 1970.", Labels: ofPartition,
	},
	outboxDeliveries: {
		Name: "epochfence_outbox_deliveries_total", Kind: Counter, Unit: "{attempt}",
		Help:   "Attempts to deliver an entry of the outbox: delivered; refused for good; retrying; fenced, as the receiver knows a higher epoch.",
		Labels: []string{"kind"}, Series: each(outbox.Delivered.String(), outbox.Refused.String(), outbox.Retrying.String(), outbox.Fenced.String()),
	},
	outboxEntries: {
		Name: "epochfence_outbox_entries", Kind: Gauge, Unit: "{entry}",
		Help: "Entries in the outbox of the partitions that this process holds, up to 10,000 of each.", Series: one,
	},
	outboxOldest: {
		Name: "epochfence_outbox_oldest_entry_age_seconds", Kind: Gauge, Unit: "s",
		Help: "Age of the oldest of those entries; 0 without any.", Series: one,
	},
	receiverRequests: {
		Name: "epochfence_receiver_requests_total", Kind: Counter, Unit: "{request}",
		Help:   "Requests that came to a receiver of this process, by what became of them.",
		Labels: []string{"outcome"}, Series: receiverOutcomes(),
	},
	receiverDuration: {
		Name: "epochfence_receiver_duration_seconds", Kind: Histogram, Unit: "s",
		Help: "Time from a request's arrival at a receiver of this process to its answer, the wait for its turn included.", Series: one, Buckets: short,
	},
}

// The outcomes of an attempt to claim.
const (
	claimed      = "claimed"
	raced        = "raced"
	notConfirmed = "not_confirmed"
	refused      = "refused"
	failed       = "failed"
)

var claimOutcomes = []string{claimed, raced, notConfirmed, refused, failed}

// claimOutcome is that of an attempt which failed for a reason.
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

// receiverOutcome is an outcome as a label has it.
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

// each is a series for each value of the only label.
func each(values ...string) (series [][]string) {
	for _, v := range values {
		series = append(series, []string{v})
	}
	return series
}

// words are the values of a type from one to another, as strings.
func words[T interface {
	~uint8
	fmt.Stringer
}](from, to T) (series [][]string) {
	for v := from; v <= to; v++ {
		series = append(series, []string{v.String()})
	}
	return series
}
