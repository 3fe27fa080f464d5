package consumer

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/epochfence/epochfence/consumer/internal/failover"
	"github.com/epochfence/epochfence/epoch"
)

// This file has the options of Run, their defaults and limits. What depends on the sink or on the
// term of a lease as well is decided in run.go, in Run and batchTimeout.

// Options configure [Run]. The zero value works.
type Options struct {
	// Start sets where a group begins in a topic for which the sink has no fence. Set it for a
	// group that needs only new messages, or that must ignore the positions that it has committed.
	// Defaults to [StartCommitted]: at the position that the group has committed to the source, or
	// at the earliest message if it has committed none.
	Start StartPolicy

	// Guarantee is the least guarantee that the sink must give. Run returns an error for a
	// sink that gives less. Defaults to [epoch.Transactional]. Set it for cassink,
	// which gives [epoch.PerItem]. Handlers.Background also needs an [epoch.Holding].
	Guarantee epoch.Guarantee

	// MaxBatch limits the messages in one transaction, over all its partitions. A transaction takes
	// the messages that are ready. It waits for more for 1 ms at most, and only for those of partitions
	// whose last transaction has just ended. The first one takes up to 256. Later ones grow while
	// transactions are quick. They shrink to 256 while transactions are slow, and to one message while
	// transactions time out or the database refuses them, as for deadlocks. Lower it if large
	// transactions block others. Defaults to 16,384, but above 4,096 only while transactions take
	// less than 100 ms.
	MaxBatch int

	// Committers is the number of transactions that may be open at a time. What is ready is shared out
	// among those that may still begin. As many again may be open for partitions that have just failed, for
	// replays, and for [Handlers.Background]. If the sink has several databases ([epoch.Sharded]), this
	// holds for each. More transactions help if handlers wait for other systems, or the database is far away.
	// While those of this process refuse each other, as by deadlocks, there are fewer. Defaults to
	// [epoch.Facts].Transactions, but to 4 at most.
	Committers int

	// BatchTimeout limits the duration of one transaction, including its handlers, and of one
	// attempt to claim a partition. It may be at most two thirds of [Tenure.Term], which the
	// source's package gives. Raise it, and the term with it, if one message needs longer. Lower it
	// if partitions are lost with [ErrDrainOverrun]. Defaults to half of the term.
	BatchTimeout time.Duration

	// HangTimeout limits how long a call of a handler, of [Handlers.OnFailure] or of
	// [Handlers.Background] may continue after its context has ended. Time during which this
	// process did not run does not count. After [ErrDrainOverrun], a handler and OnFailure have at
	// most 1 s. A call that takes longer is abandoned: the sink ends its transaction and refuses
	// what the call still writes, the process gives the partition up until the call returns, and
	// other partitions continue. A hang counts as an attempt of the message, also across processes
	// if the sink keeps an audit log. See [Overdue]. Lower it so that another process gets the
	// partition of a hung call sooner. Defaults to BatchTimeout.
	HangTimeout time.Duration

	// MaxHung limits the number of calls that hang at a time. If there are more, Run stops and
	// returns a [*HungError], so that a supervisor restarts the process. Lower it so that the
	// process is restarted sooner. Defaults to 3.
	MaxHung int

	// MaxAttempts is the number of attempts to apply a message before [Handlers.OnFailure] is
	// called. Only attempts of the message alone in a transaction count. Failures that are
	// [epoch.ErrTransient] or [epoch.ErrUnhealthy] do not count. Unknown outcomes count from the
	// third in a row, if a transaction without the message commits. MaxAttempts also limits the
	// unknown outcomes of OnFailure's transaction; after that the partition halts. Lower it if a
	// retry seldom helps. Defaults to 10.
	MaxAttempts int

	// MaxDeferrals is the number of times that [RetryAfter] stores a message for later. If the replay after the last
	// one fails, the message is a dead letter like any other. Raise it if what handlers depend on may be away for longer
	// than all the delays together. Defaults to 10.
	MaxDeferrals int

	// RetryMin and RetryMax limit the wait between attempts. The wait doubles, with jitter. Raise
	// them if handlers depend on a system that needs longer to recover. They default to 100 ms and
	// 10 s.
	RetryMin, RetryMax time.Duration

	// HaltMin and HaltMax limit the wait before a halted partition is tried again. The wait
	// doubles. Lower HaltMax so that a partition resumes sooner after its cause is fixed. They
	// default to 1 s and 1 min. A partition that an operator has paused is tried every 5 s at the
	// latest.
	HaltMin, HaltMax time.Duration

	// Patience is how long this process may give no sign of life before the others of its group remove it, if
	// the sink or the source lets them see each other ([operate.Watch]) and the source lets them remove each other
	// ([Remover]). Want 1 s or more. The session timeout of the group remains underneath, and 9 minutes are the most. A
	// suspicion that was wrong doubles it for an hour. Raise it for a process that does not run for seconds now and
	// then. If it is negative, this process neither signs nor removes others, and they wait for its session timeout.
	// Defaults to 1.5 s. Static members, whose partitions are to wait for their restart, are not suspected by default.
	Patience time.Duration

	// Observe is called with each [Event], if it is set. Calls come from several goroutines. Events
	// of one partition come in order. Observe must not block. Set it for metrics:
	// operate/stats has an Observe.
	Observe func(Event)

	// Logger receives a line for each event that an operator may want to know. A logger that
	// is enabled at [LevelTrace] also receives what partitions submit, and how transactions end. Defaults to
	// [slog.Default].
	Logger *slog.Logger
}

// Limits for mistyped options.
const (
	maxBatchLimit      = 1 << 20
	maxCommittersLimit = 1 << 10
	maxAttemptsLimit   = 1 << 20
	maxHungLimit       = 1 << 20
	maxWaitLimit       = 24 * time.Hour
)

// minPatience is two signs of 500 ms.
const minPatience = time.Second

// usualCommitters is the most transactions that are open by default: in bench, four were as fast as any number, on
// the database's machine and 1 ms from it.
const usualCommitters = 4

// withDefaults returns o for a sink that runs so many transactions at a time, or the first mistake: a second
// one is often its consequence.
func (o Options) withDefaults(transactions int) (Options, error) {
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
	count("MaxBatch", &o.MaxBatch, maxCapacity, maxBatchLimit)
	count("Committers", &o.Committers, min(max(transactions, 1), usualCommitters), maxCommittersLimit)
	count("MaxAttempts", &o.MaxAttempts, 10, maxAttemptsLimit)
	count("MaxDeferrals", &o.MaxDeferrals, 10, maxAttemptsLimit)
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
	if err == nil && (o.Patience > 0 && o.Patience < minPatience || o.Patience > maxWaitLimit) {
		err = fmt.Errorf("consumer: Options.Patience is %v; want 0 for the default of %v, %v to %v, or less than 0 for none", o.Patience, failover.DefaultPatience, minPatience, maxWaitLimit)
	}
	if err == nil && (o.Start < StartCommitted || o.Start > StartLatest) {
		err = fmt.Errorf("consumer: Options.Start is %d; want StartCommitted, StartEarliest or StartLatest", o.Start)
	}
	if o.Guarantee == 0 {
		o.Guarantee = epoch.Transactional
	}
	if err == nil && (o.Guarantee < epoch.PerItem || o.Guarantee > epoch.Transactional) {
		err = fmt.Errorf("consumer: Options.Guarantee is %d; want epoch.PerItem or epoch.Transactional", o.Guarantee)
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if o.Observe == nil {
		o.Observe = func(Event) {}
	}
	return o, err
}
