package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
)

// statusOf is a status that hears of what the process sees.
func statusOf(p *process, o options) (*consumer.Status, options) {
	var s consumer.Status
	o = p.watched(o)
	o.Observe = func(e consumer.Event) {
		p.Observe(e)
		s.Observe(e)
	}
	return &s, o
}

// watch starts a process with a status.
func (r *rig) watch(name string, h handlers, o options) (*process, *consumer.Status) {
	p := r.process(name, nil)
	s, o := statusOf(p, o)
	p.run(func(ctx context.Context) error { return consumer.Run(ctx, p.member, p.sink, h, o) })
	return p, s
}

func TestAMemberWithoutAPartitionIsReadyAndSaysThatItWaits(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		logs := []*logged{{}, {}}
		a, first := r.watch("a", each(record), options{Logger: logs[0].logger()})
		synctest.Wait()
		b, second := r.watch("b", each(record), options{Logger: logs[1].logger()})
		r.pass(time.Minute)
		waits := 0
		for _, log := range logs {
			waits += len(log.lines("no partition is assigned"))
		}
		if waits != 1 {
			t.Errorf("%d lines say that a member waits, want 1", waits)
		}
		held := 0
		for name, s := range map[string]*consumer.Status{"a": first, "b": second} {
			if err := s.Ready(); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			held += len(s.Partitions())
		}
		if held != 1 {
			t.Errorf("%d partitions held, want 1", held)
		}
		a.end()
		b.end()
		if joined, cause := second.Joined(); joined || cause != nil || len(second.Partitions()) != 0 || second.Ready() == nil {
			t.Errorf("after Run: joined %v, cause %v, partitions %v, %v", joined, cause, second.Partitions(), second.Ready())
		}
	})
}

func TestWhoIsNoMemberAnyMoreSaysWhyAndJoinsAgain(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		p := r.process("a", nil)
		s, o := statusOf(p, options{})
		if err := s.Ready(); err == nil || err.Error() != "consumer: not a member of the group" {
			t.Errorf("before it has joined: %v", err)
		}
		p.run(func(ctx context.Context) error { return consumer.Run(ctx, p.member, p.sink, each(record), o) })
		r.pass(time.Second)
		p.member.Freeze()
		r.pass(time.Minute)
		r.group().Expire(p.member)
		p.member.Thaw()
		r.pass(time.Second)
		if err := s.Ready(); err != nil {
			t.Error(err)
		}
		if left := seen[consumer.Left](p); len(left) != 1 || left[0].Cause == nil {
			t.Errorf("left: %+v, want once, with the cause", left)
		}
		if joined := seen[consumer.Joined](p); len(joined) != 2 {
			t.Errorf("joined %d times, want 2", len(joined))
		}
		p.end()
	})
}

func TestAPartitionThatHaltsIsNotReadyUntilItGoesOn(t *testing.T) {
	inBubble(t, 2, func(r *rig) {
		r.fill(0, 5)
		var fixed atomic.Bool
		h := func(ctx context.Context, tx tx, m consumer.Message, e epoch.Epoch) error {
			if m.Partition.Number == 0 && m.Offset == 3 && !fixed.Load() {
				return consumer.Permanent(errors.New("no such item"))
			}
			return record(ctx, tx, m, e)
		}
		p, s := r.watch("a", each(h), options{})
		r.pass(time.Second / 2) // it is tried again after a second
		ps := s.Partitions()
		if len(ps) != 2 || ps[0].State != consumer.StateHalted || ps[0].Next != 3 || !ps[0].RetryAt.After(time.Now()) || ps[1].State != consumer.StateClaimed {
			t.Fatalf("partitions: %+v", ps)
		}
		if err := s.Ready(); err == nil || !strings.HasPrefix(err.Error(), "consumer: group/orders/0 has halted at 3: ") || !strings.Contains(err.Error(), "no such item") {
			t.Errorf("ready: %v", err)
		}
		fixed.Store(true)
		r.pass(2 * time.Minute)
		if err := s.Ready(); err != nil {
			t.Error(err)
		}
		if p := s.Partitions()[0]; p.State != consumer.StateClaimed || p.Next != 5 || p.Err != nil || !p.RetryAt.IsZero() {
			t.Errorf("partition 0: %+v", p)
		}
		p.end()
	})
}

// Nothing commits where there is nothing to apply, which would show that it is well.
func TestAHaltedPartitionWithNothingToApplyIsReadyOnceItIsWell(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		p := r.process("a", nil)
		var fixed atomic.Bool
		source := reading{p.member, func(t consumer.Tenure, ctx context.Context, from epoch.Fence) iter.Seq2[consumer.Batch, error] {
			if fixed.Load() {
				return t.Read(ctx, from)
			}
			return func(yield func(consumer.Batch, error) bool) {
				yield(consumer.Batch{}, errors.New("the log is not to be read"))
			}
		}}
		s, o := statusOf(p, options{})
		p.run(func(ctx context.Context) error { return consumer.Run(ctx, source, p.sink, each(record), o) })
		r.pass(time.Minute)
		if err := s.Ready(); err == nil || !strings.Contains(err.Error(), "not to be read") {
			t.Fatalf("ready: %v", err)
		}
		fixed.Store(true)
		r.pass(3 * time.Minute)
		if err := s.Ready(); err != nil {
			t.Error(err)
		}
		wantOne[consumer.Resumed](p)
		p.end()
	})
}

func TestStatusIsMadeFromEvents(t *testing.T) {
	at := epoch.Partition{Group: "g", Topic: "orders", Number: 3}
	of := func(e epoch.Epoch, next epoch.Offset) epoch.Fence {
		return epoch.Fence{Origin: epoch.Origin{Partition: at}, Epoch: e, Next: next}
	}
	var (
		s    consumer.Status
		why  = errors.New("no table")
		held = consumer.Granted{Partition: at}
		took = consumer.Claimed{Fence: of(7, 20)}
	)
	for _, step := range []struct {
		event consumer.Event
		want  string // the state, the epoch, the position, why, and whether it is tried again; or nothing
	}{
		{took, ""}, // of a tenure that it has not heard of
		{held, "assigned 0 -1 <nil> false"},
		{consumer.Halted{Partition: at, Next: -1, Err: why, RetryIn: time.Second}, "halted 0 -1 no table true"},
		{took, "claimed 7 20 <nil> false"},
		{consumer.Advanced{Partition: at, Epoch: 7, From: 20, To: 30}, "claimed 7 30 <nil> false"},
		{consumer.Retried{Partition: at, Offset: 30, Attempt: 1, Err: why}, "claimed 7 30 <nil> false"},
		{consumer.InDoubt{Partition: at, Epoch: 7, Err: why}, "assigned 7 30 no table false"},
		{consumer.Claimed{Fence: of(8, 31)}, "claimed 8 31 <nil> false"},
		{consumer.Stale{Ours: of(8, 31), Held: of(9, 31)}, "assigned 8 31 <nil> false"},
		{consumer.Claimed{Fence: of(10, 31)}, "claimed 10 31 <nil> false"},
		{consumer.WentBack{Was: of(10, 31), Now: of(6, 10)}, "assigned 10 31 <nil> false"},
		{consumer.Claimed{Fence: of(11, 10)}, "claimed 11 10 <nil> false"},
		{consumer.Halted{Partition: at, Next: 10, Err: why, RetryIn: time.Second}, "halted 11 10 no table true"},
		{consumer.InDoubt{Partition: at, Epoch: 11, Err: errors.New("later")}, "halted 11 10 no table true"},
		{consumer.Claimed{Fence: of(12, 10), Halted: true}, "halted 12 10 no table true"},
		{consumer.Resumed{Partition: at, Epoch: 11, Next: 10}, "claimed 11 10 <nil> false"},
		{consumer.Halted{Partition: at, Next: 10, Err: why}, "halted 11 10 no table false"},
		{consumer.Drained{Partition: at, Epoch: 11, Next: 10}, ""},
		{held, "assigned 0 -1 <nil> false"},
		{consumer.Lost{Partition: at, Next: -1}, ""},
	} {
		s.Observe(step.event)
		got := ""
		for _, p := range s.Partitions() {
			if p.Partition != at {
				t.Errorf("%+v", p)
			}
			got += fmt.Sprintf("%v %d %d %v %v", p.State, p.Epoch, p.Next, p.Err, p.RetryAt.After(time.Now()))
		}
		if got != step.want {
			t.Errorf("after %T: %q, want %q", step.event, got, step.want)
		}
	}
}

func TestStatusHasEachCallThatHangsUntilItReturns(t *testing.T) {
	t.Parallel()
	var s consumer.Status
	at := epoch.Partition{Group: "billing", Topic: "orders", Number: 3}
	for _, stack := range []string{"first", "second"} { // two functions of background work
		s.Observe(consumer.Overdue{Partition: at, Epoch: 7, Function: consumer.FunctionBackground, Stack: stack})
	}
	s.Observe(consumer.Overdue{Partition: at, Epoch: 7, Function: consumer.FunctionHandler})
	for _, left := range []int{3, 2, 1} {
		if n := len(s.Hung()); n != left {
			t.Errorf("%d calls hang, want %d", n, left)
		}
		s.Observe(consumer.Returned{Partition: at, Epoch: 7, Function: consumer.FunctionBackground})
	}
	if calls := s.Hung(); len(calls) != 1 || calls[0].Function != consumer.FunctionHandler {
		t.Errorf("%v", calls)
	}
}
