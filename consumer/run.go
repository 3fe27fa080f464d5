// Package consumer applies the messages of a [Source] to a sink so that their effects happen
// exactly once.
//
//	err := consumer.Run(ctx, source, sink, consumer.Each(handle), consumer.Options{})
//
// A [Handler] gets each message with a transaction and an epoch. What it writes through the
// transaction, the new position, and the check that this process still owns the partition commit
// together in the sink's database, or not at all. Package epoch has the protocol.
//
// The package hides how partitions are claimed, read and shared out to transactions. Each grant of
// the source is a [Tenure] with a goroutine of its own. It claims the partition ([epoch.Sink]: read,
// confirm with the source, swap), reads from the position that the claim returned, and submits the
// messages to a committer, which applies what is ready in one transaction. What the answer means, each
// partition decides for itself.
//
// It decides what follows from an error. A transaction that fails is rolled back as a whole. The
// partition whose message failed is then applied alone, in ever smaller batches until the message
// is found, which is retried with backoff. After an unknown outcome, the partition is claimed again
// and continues from the sink's position. After a refusal as stale, it is claimed again only if the
// source still confirms the lease.
//
// It leaves to the source who owns a partition, to the sink whether a commit is allowed and whether
// an error is a message's fault, and to the user what becomes of a message that fails for good
// ([Handlers.OnFailure]). [Options] has the limits, and their defaults fit most uses.
package consumer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"sync"
	"time"

	"github.com/epochfence/epochfence/consumer/internal/aside"
	"github.com/epochfence/epochfence/consumer/internal/failover"
	"github.com/epochfence/epochfence/consumer/internal/hung"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/text/inert"
	"github.com/epochfence/epochfence/internal/waits"
	"github.com/epochfence/epochfence/operate"
)

// This file starts and ends the parts of a Run, and keeps what its partitions share. partition.go
// has the course of one partition, and committer.go groups their work into transactions.

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
	if h.each == nil && h.batch == nil && h.whole == nil {
		return errors.New("consumer: Run needs a handler")
	}
	// Only a default size may be exceeded by a brief transaction: what the user has set is a limit.
	usual := cmp.Or(o.MaxBatch, usualCapacity)
	bounds := sink.Facts()
	o, err := o.withDefaults(bounds.Transactions)
	if err != nil {
		return err
	}
	if err := h.suits(o, sink); err != nil {
		return err
	}
	// A sink may take less than the options allow, such as one partition in each transaction.
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
	d := &door[TX]{Sink: sink, handlers: h}
	r := &runner{
		Options: o, usual: usual, batches: h.each == nil, whole: h.whole != nil, beside: h.beside, backgrounds: len(h.background), policy: policy{maxAttempts: o.MaxAttempts, onFailure: h.onFailure != nil},
		bounds: bounds, stop: stop,
		shards: shardsOf(sink), troubles: aside.NewLog(o.Logger),
		lags: aside.NewLags(func(p epoch.Partition, next epoch.Offset, lag int64) {
			o.Observe(Behind{Partition: p, Next: next, Lag: lag})
		}),
		ended: map[epoch.Partition]error{}, hung: newHangs(o.MaxHung), acted: &waits.Signal{}, owners: map[epoch.Partition]*partition{},
	}
	r.membership = &aside.Membership{
		Joined: func() { o.Observe(Joined{}) }, Left: func(cause error) { o.Observe(Left{Cause: cause}) }, Idle: r.idle, Log: o.Logger,
	}
	process := aside.NewProcess(source.Identity())
	var watches []operate.Watch
	if w, ok := epoch.As[operate.Watch](sink); ok {
		watches = append(watches, w)
	}
	if w, ok := source.(operate.Watch); ok {
		watches = append(watches, w)
	}
	if remover, ok := source.(Remover); ok && len(watches) > 0 && o.Patience >= 0 {
		r.failover = &failover.Loop{
			Watches: watches, Self: operate.Peer{Group: process.Group, Run: process.Run, Name: process.Name, Host: process.Host}, Patience: o.Patience,
			Member: remover.Member, Remove: remover.Remove, MayNot: ErrMayNotRemove, Hasten: func() {},
			Suspected: func(s failover.Suspicion) { r.suspected(process, suspected(s)) },
			Wrong: func(w failover.Wrong) {
				o.Observe(SuspicionWrong{Suspected: suspected(w.Suspicion), Slept: w.Slept, Patience: w.Patience})
			},
			Log: o.Logger,
		}
		if s, ok := source.(Hastener); ok {
			r.failover.Hasten = s.Hasten
		}
		if s, ok := source.(Rejoiner); ok {
			s.RejoinWhen(func(ctx context.Context) error { return r.answered(ctx, sink) })
		}
	}
	if records, ok := operate.RecordsOf(sink); ok {
		d.records, r.records, r.policy.defers = records, records, true
		r.life = aside.NewLife(process, records.Alive, records.Gone, r.problems, o.Logger)
		r.life.Count = func(ctx context.Context) {
			n, err := records.Deferred(ctx, process.Group, func(p epoch.Partition) bool { return r.ownerOf(p) != nil })
			if err == nil { // else the next count is soon
				o.Observe(Deferring{Messages: n})
			}
		}
		r.membership.Life = r.life
		if s, ok := epoch.As[operate.Snapshots](sink); ok {
			r.life.Snapshots = s.OldestSnapshots
			r.life.Held = func(oldest []operate.Snapshot) { o.Observe(SnapshotsHeld{Oldest: oldest}) }
		}
		r.recorder = aside.NewRecorder(records.Record, func(n int, err error) { o.Observe(Unrecorded{Decisions: n, Err: err}) }, o.Logger)
		defer r.recorder.Close()
	}
	r.effects = d
	return r.run(ctx, source)
}

// runner is one Run: what its partitions share. Fields without a lock are set before the source
// starts.
type runner struct {
	Options
	usual       int  // messages in a transaction; only a brief one may have more
	batches     bool // the handler is called once for all messages of a partition in a transaction,
	whole       bool // or of all partitions
	beside      int  // calls of a transaction that may run at a time
	backgrounds int  // functions of Handlers.Background
	policy      policy
	effects     effects
	bounds      epoch.Facts
	shards      epoch.Sharded
	stop        context.CancelCauseFunc // ends Run with an error

	records  records // the sink's; nil where it has none
	recorder *aside.Recorder
	life     *aside.Life
	failover *failover.Loop // nil where processes cannot see, or not remove, each other
	acted    *waits.Signal  // operators have acted on fences

	membership *aside.Membership
	tenures    gate
	running    sync.WaitGroup // committers, and what else runs beside the partitions
	hung       *hangs
	suspects   hung.Messages
	troubles   aside.Log
	lags       *aside.Lags
	underWay   aside.UnderWay
	committers []*committer // by shard
	watches    []*watch     // by shard
	seedings   seedings

	mu     sync.Mutex
	owners map[epoch.Partition]*partition
	known  []epoch.Partition         // one that the sink can be asked about, or none yet
	shard  int                       // that of known
	ended  map[epoch.Partition]error // partitions whose handler has ended a transaction by itself
}

// run starts what runs beside the partitions, runs the source, and ends everything in the opposite order.
func (r *runner) run(ctx context.Context, source Source) error {
	defer r.troubles.Close()
	// Partitions that drain need the rest, too.
	base := context.WithoutCancel(ctx)
	beside, stopBeside := context.WithCancel(base)
	for shard := range r.shards.Shards() {
		c, w := newCommitter(base, r, shard), newWatch(r, shard)
		r.committers, r.watches = append(r.committers, c), append(r.watches, w)
		r.running.Go(func() { c.serve(beside) })
		r.running.Go(func() { w.serve(beside) })
		if r.records != nil {
			q := &requests{run: r, shard: shard, sink: r.records, now: make(chan struct{}, 1)}
			r.running.Go(func() { q.poll(beside) })
		}
	}
	r.running.Go(func() { r.lags.Ask(beside) })
	if r.life != nil {
		r.running.Go(func() { r.life.Live(beside) })
	}
	if r.failover != nil {
		// It says goodbye after the source has left the group, so that nobody suspects a drain.
		r.running.Go(func() { r.failover.Run(beside) })
	}
	over := make(chan struct{})
	defer close(over)
	defer context.AfterFunc(ctx, func() { r.underWay.LogWaits(r.log, r.Logger, over) })()
	m := r.membership
	err := source.Run(ctx, m.Changed, func(ctx context.Context, t Tenure) {
		if !r.tenures.enter() {
			return // after its Run has returned, a source must grant nothing
		}
		defer r.tenures.leave()
		r.own(ctx, t)
	})
	// A source waits for a drain only so long. Nothing of ours may run on after Run,
	// not even a transaction that would be refused.
	r.tenures.close()
	stopBeside()
	r.running.Wait()
	m.Over(err)

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
func (r *runner) hangTimeout(timeout time.Duration) time.Duration {
	return cmp.Or(r.HangTimeout, timeout)
}

// lookAtAll makes the fences of all idle partitions be read: what has happened to one fence may have
// happened to all.
func (r *runner) lookAtAll() {
	for _, w := range r.watches {
		w.lookAtAll()
	}
}

// fatalError ends Run: a mistake in the options that shows only when a partition is granted.
type fatalError struct{ err error }

func (e *fatalError) Error() string { return e.err.Error() }

// committerOf returns the committer of a partition's shard.
func (r *runner) committerOf(p epoch.Partition) *committer {
	shard := r.shards.Shard(p)
	if shard < 0 || shard >= len(r.committers) {
		shard = 0 // it will not be claimed
	}
	return r.committers[shard]
}

func (r *runner) owns(p *partition) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.owners[p.id] = p; r.known == nil {
		r.known, r.shard = []epoch.Partition{p.id}, math.MaxInt // until one is claimed: the sink may never answer about this one
	}
}

// claimed notes a partition that was claimed, of the lowest shard: processes see each other in the first one. If another
// answers nobody, that keeps nobody out of the group.
func (r *runner) claimed(p *partition) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if p.committer.shard <= r.shard {
		r.known, r.shard = []epoch.Partition{p.id}, p.committer.shard
	}
}

// answered returns nil if the sink answers this process.
func (r *runner) answered(ctx context.Context, sink epoch.Looker) error {
	r.mu.Lock()
	known := r.known
	r.mu.Unlock()
	if known == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	_, err := sink.Look(ctx, known)
	return err
}

// answerLimit is short, because a connection that was cut off notices late that it is not any more.
const answerLimit = 2 * time.Second

func (r *runner) disowns(p *partition) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.owners, p.id)
}

// idle reports whether this process has no partition.
func (r *runner) idle() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.owners) == 0
}

// owned returns the partitions of a shard that this process has, claimed or not.
func (r *runner) owned(shard int) (ps []epoch.Partition) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for id, p := range r.owners {
		if p.committer.shard == shard {
			ps = append(ps, id)
		}
	}
	return ps
}

func (r *runner) ownerOf(p epoch.Partition) *partition {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.owners[p]
}

func (r *runner) log(p epoch.Partition) *slog.Logger {
	return r.Logger.With("group", p.Group, "topic", p.Topic, "partition", p.Number)
}

// suspected reports a suspicion of this process.
func (r *runner) suspected(by operate.Process, e Suspected) {
	r.Observe(e)
	r.recorder.Add(operate.Decision{Kind: operate.DecidedSuspected, Partition: epoch.Partition{Group: by.Group}, Owner: by.Name, From: -1, To: -1, Reason: e.String()})
}

// problems returns what a sign of life says besides that this process lives.
func (r *runner) problems() (all []string) {
	r.hung.mu.Lock()
	calls := r.hung.calls()
	r.hung.mu.Unlock()
	for _, c := range calls {
		all = append(all, c.String())
	}
	if why := r.membership.Cause(); why != nil {
		all = append(all, fmt.Sprintf("not a member of the group: %v", why))
	}
	return all
}

// endedTx records that the handler ended a transaction, so that no rebalance lets it do so again.
func (r *runner) endedTx(p epoch.Partition, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ended[p] = err
}

// endedTxOf returns why this Run must not touch the partition again, or nil.
func (r *runner) endedTxOf(p epoch.Partition) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.ended[p]
}

// batchTimeout fits a transaction into the rest of a lease that is renewed each third of its term
// (R13).
func (r *runner) batchTimeout(t Tenure) (time.Duration, error) {
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

// gate counts the callers inside, and admits nobody once it is closed.
type gate struct {
	mu     sync.Mutex
	closed bool
	inside sync.WaitGroup
}

// enter reports whether the caller may continue, and must then call leave.
func (g *gate) enter() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return false
	}
	g.inside.Add(1)
	return true
}

func (g *gate) leave() { g.inside.Done() }

func (g *gate) close() {
	g.mu.Lock()
	g.closed = true
	g.mu.Unlock()
	g.inside.Wait()
}

// shardsOf returns the databases of a sink. A sink that is not [epoch.Sharded] has one.
func shardsOf[TX any](sink epoch.Sink[TX]) epoch.Sharded {
	if s, ok := epoch.As[epoch.Sharded](sink); ok {
		return s
	}
	return oneShard{func() <-chan struct{} { return sink.Facts().Replaced }}
}

// oneShard is a sink with one database.
type oneShard struct{ replaced func() <-chan struct{} }

func (oneShard) Shards() int                      { return 1 }
func (oneShard) Shard(epoch.Partition) int        { return 0 }
func (s oneShard) ReplacedIn(int) <-chan struct{} { return s.replaced() }
