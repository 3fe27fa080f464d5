package remedies_test

import (
	"context"
	"iter"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/memsource"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/suites/bubble"
	"github.com/epochfence/epochfence/operate"
	"github.com/epochfence/epochfence/operate/stats"
	"github.com/epochfence/epochfence/sinks/memsink"
)

// rig is one partition, and a process that consumes it; time is virtual.
type rig struct {
	*testing.T
	log    *memsource.Log
	sink   *memsink.Sink
	stats  *stats.Stats
	member *memsource.Member
	broken atomic.Bool // what the scenario is about has not been fixed
	stop   context.CancelFunc
	done   chan error
	begun  int

	handle    func(ctx context.Context, m consumer.Message) error // nil applies it
	onFailure func() error                                        // nil: there is none
	hooks     memsink.Hooks
	read      func(from epoch.Fence) iter.Seq2[consumer.Batch, error] // of a broken source; nil: it is not
	options   consumer.Options
}

func inBubble(t *testing.T, scenario func(r *rig)) {
	t.Helper()
	bubble.Test(t, func(t *testing.T) {
		r := &rig{T: t, log: memsource.New("orders", 1), sink: memsink.New(), done: make(chan error, 1)}
		r.broken.Store(true)
		defer func() {
			r.broken.Store(false)
			if r.stop != nil {
				r.end()
			}
		}()
		scenario(r)
	})
}

func (r *rig) group() *memsource.Group { return r.log.Group(memsource.DefaultGroup) }

func (r *rig) partition() epoch.Partition {
	return epoch.Partition{Group: memsource.DefaultGroup, Topic: "orders"}
}

// begin starts a process, and ends the one before.
func (r *rig) begin() {
	if r.stop != nil {
		r.end()
	}
	r.begun++
	r.member, r.stats = r.group().Member(strings.Repeat("I", r.begun)), stats.New()
	sink := r.sink.Open()
	sink.Script(r.hooks)
	h := consumer.Each(func(ctx context.Context, tx *memsink.Tx, m consumer.Message, _ epoch.Epoch) error {
		if r.handle != nil {
			if err := r.handle(ctx, m); err != nil {
				return err
			}
		}
		tx.Append("applied", string(m.Value))
		return nil
	})
	if r.onFailure != nil {
		h = h.OnFailure(func(context.Context, *memsink.Tx, consumer.Message, epoch.Epoch, error) error { return r.onFailure() })
	}
	o := r.options
	o.Observe, o.Logger = r.stats.Observe, slog.New(slog.DiscardHandler)
	ctx, stop := context.WithCancel(r.Context())
	r.stop = stop
	go func() { r.done <- consumer.Run(ctx, &source{r.member, r}, sink, h, o) }()
}

func (r *rig) end() {
	r.Helper()
	r.stop()
	if err := <-r.done; err != nil {
		r.Errorf("Run: %v", err)
	}
	r.stop = nil
}

// source is a member whose readings the scenario may break.
type source struct {
	*memsource.Member
	rig *rig
}

func (s *source) Run(ctx context.Context, joined func(error), own func(context.Context, consumer.Tenure)) error {
	return s.Member.Run(ctx, joined, func(ctx context.Context, t consumer.Tenure) { own(ctx, &tenure{t, s.rig}) })
}

type tenure struct {
	consumer.Tenure
	rig *rig
}

func (t *tenure) Read(ctx context.Context, from epoch.Fence) iter.Seq2[consumer.Batch, error] {
	if t.rig.read == nil || !t.rig.broken.Load() {
		return t.Tenure.Read(ctx, from)
	}
	return t.rig.read(from)
}

// pass lets virtual time pass.
func (r *rig) pass(d time.Duration) { <-time.After(d); synctest.Wait() }

// wantHalt waits until the partition has halted, which must be for that reason, and sees
// that it stays so.
func (r *rig) wantHalt(why consumer.Reason) {
	r.Helper()
	for range 60 {
		if ps := r.stats.Partitions(); len(ps) == 1 && ps[0].State == consumer.StateHalted {
			break
		}
		r.pass(time.Second)
	}
	r.pass(2 * time.Minute)
	ps := r.stats.Partitions()
	if len(ps) != 1 || ps[0].State != consumer.StateHalted || ps[0].Reason != why {
		r.Fatalf("%+v, want a partition that has halted for %v", ps, why)
	}
}

// err is what the partition has halted with.
func (r *rig) err() error { return r.stats.Partitions()[0].Err }

// wantGoesOn wants the partition to continue by itself, and these messages to have been
// applied by then.
func (r *rig) wantGoesOn(applied ...string) {
	r.Helper()
	r.pass(3 * time.Minute) // the longest wait before a halted partition is tried again, and some
	if ps := r.stats.Partitions(); len(ps) != 1 || ps[0].State != consumer.StateClaimed {
		r.Errorf("%+v, want a partition that continues", ps)
	}
	if got := r.sink.List("applied"); !slices.Equal(got, applied) {
		r.Errorf("applied %q, want %q", got, applied)
	}
}

// wantLost wants the partition to have been lost for that reason.
func (r *rig) wantLost(why consumer.Reason) {
	r.Helper()
	for _, m := range r.stats.Timeline() {
		if m.Kind == stats.Lost && m.Reason == why {
			return
		}
	}
	r.Errorf("%+v, want a loss for %v", r.stats.Timeline(), why)
}

// act is what an operator does by a command of epochfence.
func (r *rig) act(kind operate.ActKind, change func(a *operate.Act)) {
	r.Helper()
	op := r.sink.Operator()
	seen, err := op.Partition(r.Context(), r.partition())
	if err != nil {
		r.Fatal(err)
	}
	a := operate.NewAct(kind, seen.Fence, "anna", "for the test")
	if change != nil {
		change(&a)
	}
	if _, err := op.Act(r.Context(), a); err != nil {
		r.Fatalf("%s: %v", kind, err)
	}
}

func to(o epoch.Offset) func(*operate.Act) {
	return func(a *operate.Act) { a.To = &epoch.Position{Offset: o, Mark: epoch.NoMark} }
}
