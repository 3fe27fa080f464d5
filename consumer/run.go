package consumer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/text/inert"
	"github.com/epochfence/epochfence/internal/text/troubles"
	"github.com/epochfence/epochfence/internal/waits"
	"github.com/epochfence/epochfence/operate"
)

// This file starts and ends the parts of a Run, and keeps what its partitions share. ownership.go
// has the course of one partition, and loop.go that of transactions.

// Run applies the messages of the partitions that source leases to this process, with h and in
// sink, until ctx ends. Then it drains: the transactions under way commit, the partitions are given
// back, and Run returns nil.
//
//	err := consumer.Run(ctx, source, sink, consumer.Each(reserve).OnFailure(sink.DeadLetter), consumer.Options{})
//
// Run returns an error for wrong options, for a sink that gives less than they need, and if the
// source cannot start or continue. No message ends Run. Run waits for handlers until they hang.
// If calls hang when ctx has ended, or if more than [Options.MaxHung] hang, Run returns an error in
// which [errors.As] finds a [*HungError] that names the calls, and leaves their goroutines behind.
func Run[TX any](ctx context.Context, source Source, sink epoch.Sink[TX], h Handlers[TX], o Options) error {
	if source == nil || sink == nil {
		return errors.New("consumer: Run needs a source and a sink")
	}
	if h.calls == nil {
		return errors.New("consumer: Run needs a handler")
	}
	// Only a default size may be exceeded by a brief transaction: what the user has set is a limit.
	usual := cmp.Or(o.MaxBatch, usualCapacity)
	o, err := o.withDefaults()
	if err != nil {
		return err
	}
	if err := h.suits(o, sink); err != nil {
		return err
	}
	// A sink may take less than the options allow, such as one partition in each transaction.
	bounds := sink.Facts()
	if bounds.Guarantee < epoch.Transactional {
		bounds.Partitions = 1
	}
	if bounds.Messages > 0 {
		o.MaxBatch = min(o.MaxBatch, bounds.Messages)
	}
	if s, ok := epoch.As[epoch.Sharded](sink); ok && s.Shards() < 1 {
		return fmt.Errorf("consumer: the sink says that it has %d shards; want at least one", s.Shards())
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	r := &runner[TX]{
		Options: o, usual: usual, handlers: h, policy: policy{maxAttempts: o.MaxAttempts, onFailure: h.onFailure != nil}, sink: sink, bounds: bounds, stop: stop,
		shards: shardsOf(sink), troubles: troubleLog{troubles.New[epoch.Partition](o.Logger, "partitions")}, lags: newLags(o.Observe),
		pins: map[*loop[TX]]int{}, ended: map[epoch.Partition]error{},
		hung: newHangs(o.MaxHung), acted: &waits.Signal{}, owners: map[epoch.Partition]*ownership[TX]{},
	}
	r.membership = &membership{observe: o.Observe, log: o.Logger, idle: r.idle}
	if operable, ok := operate.RecordsOf(sink); ok {
		r.operable = operable
		r.life = newLife(source, operable.Alive, operable.Gone, r.problems, o.Logger)
		r.membership.life = r.life
		if s, ok := epoch.As[operate.Snapshots](sink); ok {
			r.life.snapshots, r.life.observe = s.OldestSnapshots, o.Observe
		}
		r.recorder = newRecorder(operable.Record, o.Observe, o.Logger)
		defer r.recorder.close()
	}
	return r.run(ctx, source)
}

// runner is one Run: what its partitions share. Fields without a lock are set before the source
// starts.
type runner[TX any] struct {
	Options
	usual    int // messages in a transaction; only a brief one may have more
	handlers Handlers[TX]
	policy   policy
	sink     epoch.Sink[TX]
	bounds   epoch.Facts
	shards   epoch.Sharded
	stop     context.CancelCauseFunc // ends Run with an error

	operable *operate.Records[TX] // the sink's; nil where it is none
	recorder *recorder
	life     *life
	acted    *waits.Signal // operators have acted on fences

	membership *membership
	tenures    gate
	running    sync.WaitGroup // loops, and what they have started
	hung       *hangs
	troubles   troubleLog
	lags       *lags
	underWay   underWay
	loops      []*loop[TX] // shard by shard
	seedings   seedings

	mu   sync.Mutex
	pins map[*loop[TX]]int

	owners map[epoch.Partition]*ownership[TX]
	ended  map[epoch.Partition]error // partitions whose handler has ended a transaction by itself
}

// run starts the loops, runs the source, and ends everything in the opposite order. Each part ends
// only after those that use it: tenures, then polls, then loops.
func (r *runner[TX]) run(ctx context.Context, source Source) error {
	defer r.troubles.Close()
	for i := range r.shards.Shards() * r.Committers {
		// A loop outlives ctx. Its work ends with its tenures.
		l := newLoop(context.WithoutCancel(ctx), r, i/r.Committers)
		r.loops = append(r.loops, l)
		r.running.Go(l.serve)
	}
	stopLooking := r.lookForRequests(ctx)
	asking, stopAsking := context.WithCancel(context.WithoutCancel(ctx))
	r.running.Go(func() { r.lags.ask(asking) })
	living, stopLiving := context.WithCancel(context.WithoutCancel(ctx)) // until the drain is over
	if r.life != nil {
		r.running.Go(func() { r.life.live(living) })
	}
	over := make(chan struct{})
	defer close(over)
	defer context.AfterFunc(ctx, func() { r.sayWhatIsWaitedFor(over) })()
	m := r.membership
	err := source.Run(ctx, m.changed, func(ctx context.Context, t Tenure) {
		if !r.tenures.enter() {
			return // after its Run has returned, a source must grant nothing
		}
		defer r.tenures.leave()
		r.own(ctx, t)
	})
	// A source waits for a drain only so long. Nothing of ours may run on after Run,
	// not even a transaction that would be refused.
	r.tenures.close()
	stopLooking()
	stopAsking()
	stopLiving()
	for _, l := range r.loops {
		close(l.closed)
	}
	r.running.Wait()
	m.over(err)

	var fatal *fatalError
	if errors.As(inert.Error(context.Cause(ctx)), &fatal) {
		return fatal.err
	}
	if hung := r.hung.close(); hung != nil {
		return errors.Join(hung, err)
	}
	return err
}

// hangTimeout is how long a call may continue after its context has ended. Defaults to timeout.
func (r *runner[TX]) hangTimeout(timeout time.Duration) time.Duration {
	return cmp.Or(r.HangTimeout, timeout)
}

func (r *runner[TX]) lookForRequests(ctx context.Context) (stop func()) {
	ctx, stop = context.WithCancel(context.WithoutCancel(ctx)) // partitions that drain have requests, too
	if r.operable != nil {
		for shard := range r.shards.Shards() {
			q := &requests[TX]{run: r, shard: shard, sink: r.operable, now: make(chan struct{}, 1)}
			r.running.Go(func() { q.look(ctx) })
		}
	}
	return stop
}

// lookAtAll makes all loops look at their idle partitions: what has happened to one fence may have
// happened to all.
func (r *runner[TX]) lookAtAll() {
	for _, l := range r.loops {
		l.send(fencesWanted[TX]{})
	}
}

// fatalError ends Run: a mistake in the options that shows only when a partition is granted.
type fatalError struct{ err error }

func (e *fatalError) Error() string { return e.err.Error() }

// pin chooses the loop of a partition: of its shard, the one with the fewest. A partition stays
// there for its tenure, so one goroutine has its state.
func (r *runner[TX]) pin(p epoch.Partition) *loop[TX] {
	shard := r.shards.Shard(p)
	if shard < 0 || shard >= r.shards.Shards() {
		shard = 0 // it will not be claimed
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	least := slices.MinFunc(r.loops[shard*r.Committers:][:r.Committers], func(a, b *loop[TX]) int { return r.pins[a] - r.pins[b] })
	r.pins[least]++
	return least
}

func (r *runner[TX]) owns(o *ownership[TX]) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.owners[o.partition] = o
}

func (r *runner[TX]) disowns(o *ownership[TX]) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.owners, o.partition)
}

// idle reports whether this process has no partition.
func (r *runner[TX]) idle() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.owners) == 0
}

// owned returns the partitions of a shard that this process has, claimed or not.
func (r *runner[TX]) owned(shard int) (ps []epoch.Partition) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for p, o := range r.owners {
		if o.loop.shard == shard {
			ps = append(ps, p)
		}
	}
	return ps
}

func (r *runner[TX]) ownerOf(p epoch.Partition) *ownership[TX] {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.owners[p]
}

func (r *runner[TX]) unpin(l *loop[TX]) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pins[l]--
}

func (r *runner[TX]) log(p epoch.Partition) *slog.Logger {
	return r.Logger.With("group", p.Group, "topic", p.Topic, "partition", p.Number)
}

// endedTx records that the handler ended a transaction, so that no rebalance lets it do so again.
func (r *runner[TX]) endedTx(p epoch.Partition, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ended[p] = err
}

// endedTxOf returns why this Run must not touch the partition again, or nil.
func (r *runner[TX]) endedTxOf(p epoch.Partition) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.ended[p]
}

// batchTimeout fits a transaction into the rest of a lease that is renewed each third of its term
// (R13).
func (r *runner[TX]) batchTimeout(t Tenure) (time.Duration, error) {
	term := t.Term()
	if r.BatchTimeout == 0 {
		return term / 2, nil
	}
	if most := term * 2 / 3; r.BatchTimeout > most {
		o := t.Origin()
		return 0, fmt.Errorf("consumer: Options.BatchTimeout is %v, but %s leases %s for %v: "+
			"a transaction must be over before the lease can be, so want %v at most; lower the one or raise the other",
			r.BatchTimeout, o.Source, o.Partition, term, most)
	}
	return r.BatchTimeout, nil
}
