package consumer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/epochfence/epochfence/epoch"
)

// Run consumes what source leases to this process and applies it to sink until
// ctx ends. Then it drains: the transactions under way commit, the partitions
// are given back, and Run returns nil.
//
// It returns an error for wrong options, for a sink that gives less than they
// ask for, and when the source cannot start or go
// on. Nothing that happens to a message ends it. It waits for a handler that is
// at work for as long as that takes.
func Run[TX any](ctx context.Context, source Source, sink epoch.Sink[TX], handle Handler[TX], o Options[TX]) error {
	if handle == nil {
		return errors.New("consumer: the handler is nil")
	}
	return run(ctx, source, sink, oneByOne(handle), o)
}

// RunBatch is [Run] for a [BatchHandler].
func RunBatch[TX any](ctx context.Context, source Source, sink epoch.Sink[TX], handle BatchHandler[TX], o Options[TX]) error {
	if handle == nil {
		return errors.New("consumer: the handler is nil")
	}
	return run(ctx, source, sink, allAtOnce(handle), o)
}

// runner is what one Run has in common.
type runner[TX any] struct {
	Options[TX]
	policy policy
	sink   epoch.Sink[TX]
	handle applyFunc[TX]
	stop   context.CancelCauseFunc // ends Run with an error

	tenures  gate
	running  sync.WaitGroup // loops, and what they have started
	troubles *troubles
	underWay underWay
	loops    []*loop[TX]

	mu    sync.Mutex
	pins  map[*loop[TX]]int
	ended map[epoch.Partition]error // partitions whose handler has ended a transaction by itself
}

func run[TX any](ctx context.Context, source Source, sink epoch.Sink[TX], handle applyFunc[TX], o Options[TX]) error {
	if source == nil || sink == nil {
		return errors.New("consumer: Run needs a source and a sink")
	}
	o, err := o.withDefaults()
	if err != nil {
		return err
	}
	if err := o.suits(sink.Guarantee()); err != nil {
		return err
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	r := &runner[TX]{
		Options: o, policy: policy{maxAttempts: o.MaxAttempts, onFailure: o.OnFailure != nil}, sink: sink, handle: handle, stop: stop,
		troubles: newTroubles(o.Logger), pins: map[*loop[TX]]int{}, ended: map[epoch.Partition]error{},
	}
	defer r.troubles.close()
	for range o.Committers {
		// A loop outlives ctx: what ends its work is the end of each tenure.
		l := newLoop(context.WithoutCancel(ctx), r)
		r.loops = append(r.loops, l)
		r.running.Go(l.serve)
	}
	over := make(chan struct{})
	defer close(over)
	defer context.AfterFunc(ctx, func() { r.sayWhatIsWaitedFor(over) })()
	err = source.Run(ctx, func(ctx context.Context, t Tenure) {
		if !r.tenures.enter() {
			return // after its Run has returned, a source must grant nothing
		}
		defer r.tenures.leave()
		r.own(ctx, t)
	})
	// A source waits for a drain only so long. Nothing of ours runs on after
	// Run, not even a transaction that is bound to be refused.
	r.tenures.close()
	for _, l := range r.loops {
		close(l.closed)
	}
	r.running.Wait()

	var fatal *fatalError
	if errors.As(context.Cause(ctx), &fatal) {
		return fatal.err
	}
	return err
}

// lookAtAll has all partitions looked at that have nothing to commit.
func (r *runner[TX]) lookAtAll() {
	for _, l := range r.loops {
		l.do(l.idle.lookAtAll)
	}
}

// fatalError ends Run: a mistake in the options that shows only once a
// partition is granted.
type fatalError struct{ err error }

func (e *fatalError) Error() string { return e.err.Error() }

// pin gives a partition to the loop that has the fewest.
func (r *runner[TX]) pin() *loop[TX] {
	r.mu.Lock()
	defer r.mu.Unlock()
	least := slices.MinFunc(r.loops, func(a, b *loop[TX]) int { return r.pins[a] - r.pins[b] })
	r.pins[least]++
	return least
}

func (r *runner[TX]) unpin(l *loop[TX]) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pins[l]--
}

func (r *runner[TX]) log(p epoch.Partition) *slog.Logger {
	return r.Logger.With("group", p.Group, "topic", p.Topic, "partition", p.Number)
}

// endedTx notes that the handler has ended a transaction by itself, for as long as
// this Run lasts: a rebalance must not let it do so again.
func (r *runner[TX]) endedTx(p epoch.Partition, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ended[p] = err
}

func (r *runner[TX]) endedTxOf(p epoch.Partition) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.ended[p]
}

// batchTimeout bounds a transaction by what remains of a lease in good order,
// which is renewed at least once a third of its term (R13).
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

// applyFunc calls the user's handler. It returns the index of the message that
// failed, or -1 where that is not known.
type applyFunc[TX any] func(ctx context.Context, tx TX, ms []Message, e epoch.Epoch) (at int, err error)

// oneByOne and allAtOnce make the two kinds of handlers one.
func oneByOne[TX any](handle Handler[TX]) applyFunc[TX] {
	return func(ctx context.Context, tx TX, ms []Message, e epoch.Epoch) (int, error) {
		at := -1
		err := guard(func() error {
			for i, m := range ms {
				at = i
				if err := context.Cause(ctx); err != nil {
					return err
				}
				if err := handle(ctx, tx, m, e); err != nil {
					return err
				}
			}
			return nil
		})
		return at, err
	}
}

func allAtOnce[TX any](handle BatchHandler[TX]) applyFunc[TX] {
	return func(ctx context.Context, tx TX, ms []Message, e epoch.Epoch) (int, error) {
		ms = slices.Clone(ms) // a handler may sort its slice; ours says what is still to be applied
		return -1, guard(func() error { return handle(ctx, tx, ms, e) })
	}
}
