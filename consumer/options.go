package consumer

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/epochfence/epochfence/epoch"
)

// Options say how [Run] works. The zero Options work.
type Options struct {
	// Start says where to begin in a topic of which the sink has no fence. The
	// zero value continues where the group had committed to the source, and
	// begins at the earliest message otherwise.
	Start StartPolicy

	// Guarantee is the least that the sink must give; Run refuses a sink that
	// gives less. Zero means [epoch.Transactional]: every effect exactly once.
	// Handlers.OnFailure and Handlers.Background need that, too.
	Guarantee epoch.Guarantee

	// MaxBatch is how many messages a transaction takes at most, of all its
	// partitions together. It takes what is ready and never waits for more. The
	// first takes 256, and those after it more where they are quick. One takes less
	// where handlers are slow, to stay well within BatchTimeout, and where the
	// database refuses transactions that one message at a time would get
	// through, as it does for deadlocks: down to one message, and more again
	// when it stays calm. Zero means 16,384, of which a transaction takes more than 4,096
	// only while those before it take 50 ms or less.
	MaxBatch int

	// Committers is how many transactions may be open at a time, beside those
	// of partitions that have just failed, which take turns in one more for
	// each committer, and beside those of background work, of which there is one for each
	// committer too. Each partition is pinned to one committer, and each
	// transaction takes what is ready from all of a committer's partitions.
	// Where the sink has several databases ([epoch.Sharded]), each of them has so
	// many committers, and a partition is pinned to one of its own database.
	// Zero means one. More help where the handler waits; partitions whose
	// messages touch the same rows may then deadlock with each other, as they
	// may with those of other processes anyhow. See [Handler] for what that costs.
	Committers int

	// BatchTimeout bounds one transaction, handlers included, and one attempt
	// to claim. It can be two thirds of the source's Term at most. Zero means
	// half of the Term.
	BatchTimeout time.Duration

	// HangTimeout limits how long a call of a handler, of [Handlers.OnFailure] or of
	// [Handlers.Background] may continue after its context has ended, be it by BatchTimeout or
	// because the partition was revoked or lost. Time in which this process did not run does
	// not count. A call that takes longer hangs, and is abandoned: the sink ends its
	// transaction, the other partitions continue, and its own partition is given up to other
	// processes until the call returns. What the call still writes is refused. A message
	// whose call hangs has failed an attempt, which the next owner counts too if the sink is
	// an [epoch.Operable]. See [Overdue]. Defaults to BatchTimeout, so that a transaction is
	// abandoned after twice its time.
	HangTimeout time.Duration

	// MaxHung limits how many calls may hang at a time. When there are more, Run stops and
	// returns a [*HungError], so that whoever supervises the process starts it again.
	// Defaults to 3.
	MaxHung int

	// MaxAttempts is how often a message is tried before [Handlers.OnFailure]. Zero means
	// 10. A message that fails among others is tried alone first; those tries
	// do not count, and neither do failures that are [epoch.ErrTransient] or
	// [epoch.ErrUnhealthy]. OnFailure is called as often for it where each call
	// ends in doubt.
	MaxAttempts int

	// RetryMin and RetryMax bound the wait between attempts, which doubles,
	// with jitter. Zero means 100 ms and 10 s.
	RetryMin, RetryMax time.Duration

	// HaltMin and HaltMax bound the wait before a halted partition is tried
	// again, which doubles. Zero means 1 s and 1 min.
	HaltMin, HaltMax time.Duration

	// Observe, if it is set, is told what happens to partitions. It is called from
	// several goroutines, for each partition in the order things happened, and must
	// not block.
	Observe func(Event)

	// Logger gets one line for each event that an operator may want to know of. A logger
	// that is enabled at [LevelTrace] also gets one for each event of the committers.
	// Defaults to [slog.Default].
	Logger *slog.Logger
}

// The limits keep a mistyped option from taking the process down.
const (
	maxBatchLimit      = 1 << 20
	maxCommittersLimit = 1 << 10
	maxAttemptsLimit   = 1 << 20
	maxHungLimit       = 1 << 20
	maxWaitLimit       = 24 * time.Hour
)

func (o Options) withDefaults() (Options, error) {
	var err error
	count := func(name string, v *int, zero, limit int) {
		if *v == 0 {
			*v = zero
		}
		if err == nil && (*v < 0 || *v > limit) {
			err = fmt.Errorf("consumer: Options.%s is %d; want 0 for the default of %d, or 1 to %d", name, *v, zero, limit)
		}
	}
	wait := func(name string, v *time.Duration, zero time.Duration) {
		if *v == 0 {
			*v = zero
		}
		if err == nil && (*v < 0 || *v > maxWaitLimit) {
			err = fmt.Errorf("consumer: Options.%s is %v; want 0 for the default, or up to %v", name, *v, maxWaitLimit)
		}
	}
	count("MaxBatch", &o.MaxBatch, mostRoom, maxBatchLimit)
	count("Committers", &o.Committers, 1, maxCommittersLimit)
	count("MaxAttempts", &o.MaxAttempts, 10, maxAttemptsLimit)
	count("MaxHung", &o.MaxHung, 3, maxHungLimit)
	wait("BatchTimeout", &o.BatchTimeout, 0)
	wait("HangTimeout", &o.HangTimeout, 0)
	bounds := func(low, high string, vlow, vhigh *time.Duration, zlow, zhigh time.Duration) {
		if *vhigh > 0 {
			zlow = min(zlow, *vhigh)
		}
		wait(low, vlow, zlow)
		wait(high, vhigh, max(zhigh, *vlow))
	}
	bounds("RetryMin", "RetryMax", &o.RetryMin, &o.RetryMax, 100*time.Millisecond, 10*time.Second)
	bounds("HaltMin", "HaltMax", &o.HaltMin, &o.HaltMax, time.Second, time.Minute)
	if err == nil && o.RetryMin > o.RetryMax {
		err = fmt.Errorf("consumer: Options.RetryMin %v is above RetryMax %v", o.RetryMin, o.RetryMax)
	}
	if err == nil && o.HaltMin > o.HaltMax {
		err = fmt.Errorf("consumer: Options.HaltMin %v is above HaltMax %v", o.HaltMin, o.HaltMax)
	}
	if err == nil && (o.Start < StartCommitted || o.Start > StartLatest) {
		err = fmt.Errorf("consumer: Options.Start is %d; want StartCommitted, StartEarliest or StartLatest", o.Start)
	}
	if o.Guarantee == 0 {
		o.Guarantee = epoch.Transactional
	}
	if err == nil && (o.Guarantee < epoch.Keyed || o.Guarantee > epoch.Transactional) {
		err = fmt.Errorf("consumer: Options.Guarantee is %d; want epoch.Keyed, epoch.Conditional or epoch.Transactional", o.Guarantee)
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if o.Observe == nil {
		o.Observe = func(Event) {}
	}
	return o, err
}
