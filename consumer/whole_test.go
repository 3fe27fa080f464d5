package consumer_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/operate"
	"github.com/epochfence/epochfence/sinks/memsink"
)

// whole records all messages of a transaction.
func whole(one handler) handlers {
	return consumer.EachTransaction(func(ctx context.Context, tx tx, ms []consumer.Message) error {
		for _, m := range ms {
			if err := one(ctx, tx, m, m.Under.Epoch); err != nil {
				return err
			}
		}
		return nil
	})
}

func TestOneCallHasTheMessagesOfAllPartitionsOfATransaction(t *testing.T) {
	const partitions, messages = 8, 500
	inBubble(t, partitions, func(r *rig) {
		var want [partitions][]string
		for n := range int32(partitions) {
			want[n] = r.fill(n, messages)
		}
		var calls, transactions atomic.Int32
		h := consumer.EachTransaction(func(ctx context.Context, tx tx, ms []consumer.Message) error {
			calls.Add(1)
			for i, m := range ms {
				if i > 0 && m.Partition == ms[i-1].Partition && m.Offset <= ms[i-1].Offset || m.Under.Partition != m.Partition {
					t.Errorf("%+v after %+v", m, ms[max(i-1, 0)])
				}
			}
			begins := func(a, b consumer.Message) bool { return a.Partition != b.Partition }
			seen := map[epoch.Partition]bool{}
			for i, m := range ms {
				if i > 0 && begins(ms[i-1], m) && seen[m.Partition] {
					t.Errorf("the messages of %s are not together", m.Partition)
				}
				seen[m.Partition] = true
				_ = record(ctx, tx, m, m.Under.Epoch)
			}
			slices.Reverse(ms) // and it may sort them
			return nil
		})
		p := r.start("a", h, options{}, memsink.Hooks{Commit: func(_ context.Context, as []epoch.Advance, do func() error) error {
			transactions.Add(1)
			r.pass(5 * time.Millisecond)
			return do()
		}})
		r.applied()
		p.end()
		if calls.Load() != transactions.Load() || calls.Load() > 40 {
			t.Errorf("%d calls in %d transactions", calls.Load(), transactions.Load())
		}
		for n := range int32(partitions) {
			r.wantEffects(n, want[n]...)
		}
	})
}

// Nobody knows of which partition the error of a common call is. Partitions that have done nothing wrong are
// rid of the suspicion with their next transaction.
func TestAMessageThatFailsInACommonCallIsFoundAndTheOtherPartitionsAreNotSlowed(t *testing.T) {
	const partitions, messages = 6, 240
	inBubble(t, partitions, func(r *rig) {
		var want [partitions][]string
		fill := func() {
			for n := range int32(partitions) {
				want[n] = r.fill(n, messages/partitions)
			}
		}
		transactions := map[int32]int{}
		p := r.start("a", whole(failOn(consumer.Permanent(errPoison), "3/17")).OnFailure(r.sink.DeadLetter), options{})
		r.together(p, func(_ context.Context, as []epoch.Advance, do func() error) error {
			for _, a := range as {
				transactions[a.Partition.Number]++
			}
			return do()
		}, fill)
		r.applied()
		p.end()
		want[0] = append([]string{"first"}, want[0]...)
		for n := range int32(partitions) {
			if n == 3 {
				want[n] = slices.Delete(want[n], 17, 18)
			} else if transactions[n] > 4 {
				t.Errorf("partition %d took %d transactions", n, transactions[n])
			}
			r.wantEffects(n, want[n]...)
		}
		if dead := r.sink.DeadLetters(); len(dead) != 1 || dead[0].Message.Offset != 17 {
			t.Errorf("dead letters: %+v", dead)
		}
	})
}

// A call that hangs has messages of several partitions, of which this process must not apply any beside it. The
// next owner finds the message, one by one.
func TestACommonCallThatHangsGivesUpAllItsPartitions(t *testing.T) {
	const partitions = 3
	inBubble(t, partitions, func(r *rig) {
		h := hangsOn("1/2")
		handlers := whole(h.handle).OnFailure(r.sink.DeadLetter)
		a := r.start("a", handlers, hangOptions(2))
		var want [partitions][]string
		r.together(a, func(_ context.Context, _ []epoch.Advance, do func() error) error { return do() }, func() {
			for n := range int32(partitions) {
				want[n] = r.fill(n, 4)
			}
		})
		r.pass(5 * time.Second)
		if given := len(seen[consumer.Overdue](a)); given != 1 {
			t.Errorf("%d calls hang, want one", given)
		}
		ps := []*process{a}
		for _, name := range []string{"b", "c", "d"} {
			ps = append(ps, r.start(name, handlers, hangOptions(2)))
		}
		r.pass(5 * time.Minute)
		if n := len(seen[consumer.Claimed](a)); n != partitions {
			t.Errorf("the process in which the call hangs has claimed %d times, want once each", n)
		}
		want[0] = append([]string{"first"}, want[0]...)
		want[1] = slices.Delete(want[1], 2, 3)
		for n := range int32(partitions) {
			r.wantEffects(n, want[n]...)
		}
		if l := r.sink.DeadLetters(); len(l) != 1 || l[0].Message.Offset != 2 || l[0].Message.Partition.Number != 1 {
			t.Errorf("dead letters: %v", l)
		}
		h.release()
		over(ps...)
	})
}

// Each of its messages may be the one that hangs. That is an attempt of none of them: with few attempts, they would
// go to OnFailure and were never tried.
func TestACommonCallThatHangsIsNoAttemptOfItsMessages(t *testing.T) {
	const partitions = 3
	inBubble(t, partitions, func(r *rig) {
		h := hangsOn("1/0")
		handlers := whole(h.handle).OnFailure(r.sink.DeadLetter)
		ps := []*process{r.start("a", handlers, hangOptions(1))}
		r.together(ps[0], func(_ context.Context, _ []epoch.Advance, do func() error) error { return do() }, func() {
			for n := range int32(partitions) {
				r.fill(n, 1)
			}
		})
		r.pass(5 * time.Second)
		for _, name := range []string{"b", "c"} {
			ps = append(ps, r.start(name, handlers, hangOptions(1)))
		}
		r.pass(5 * time.Minute)
		r.wantEffects(0, "first", "0/0")
		r.wantEffects(1)
		r.wantEffects(2, "2/0")
		if l := r.sink.DeadLetters(); len(l) != 1 || l[0].Message.Partition.Number != 1 {
			t.Errorf("dead letters: %v", l)
		}
		for _, d := range r.decided(2, operate.DecidedHang) {
			if !strings.Contains(d.Reason, "orders[2]") && !strings.Contains(d.Reason, "orders/2") {
				t.Errorf("the audit log of partition 2 says %s", d.Reason)
			}
		}
		h.release()
		over(ps...)
	})
}

func TestADeadLetterIsReplayedInACommonCall(t *testing.T) {
	inBubble(t, 2, func(r *rig) {
		var fixed atomic.Bool
		all := r.fill(0, 3)
		p := r.start("a", whole(func(ctx context.Context, tx tx, m consumer.Message, e epoch.Epoch) error {
			if string(m.Value) == all[1] && !fixed.Load() {
				return consumer.Permanent(errors.New("no such item"))
			}
			return record(ctx, tx, m, e)
		}).OnFailure(r.sink.DeadLetter), options{})
		r.applied()
		fixed.Store(true)
		r.requests()
		r.pass(time.Minute)
		p.end()
		r.wantEffects(0, all[0], all[2], all[1])
		if l := r.sink.DeadLetters(); len(l) != 0 {
			t.Errorf("dead letters: %v", l)
		}
	})
}
