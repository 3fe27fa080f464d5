package consumer_test

import (
	"context"
	"errors"
	"fmt"
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

func TestDecisionsOfAConsumerAreRecorded(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		r.group().Script()
		p := r.start("a", each(record), options{})
		r.group().Grant(p.member, "orders", 0)
		r.fill(0, 3)
		r.pass(time.Second)
		r.acts(operate.ActEvict, 0)
		r.log.Append(0, "0/3")
		r.pass(time.Second)
		lost := atomic.Bool{}
		p.sink.Script(memsink.Hooks{Commit: func(_ context.Context, _ []epoch.Advance, do func() error) error {
			if lost.CompareAndSwap(false, true) {
				_ = do()
				return epoch.ErrInDoubt
			}
			return do()
		}})
		r.log.Append(0, "0/4")
		r.pass(time.Second)
		r.group().Lose(p.member, "orders", 0, errors.New("fenced by the broker"))
		r.pass(time.Second)
		ds := r.decided(0, operate.DecidedStale, operate.DecidedInDoubt, operate.DecidedLoss)
		var got []string
		for _, d := range ds {
			got = append(got, fmt.Sprintf("%s %d %d>%d %s", d.Kind, d.Epoch, d.From, d.To, d.Owner))
		}
		want := []string{"stale 1 3>3 a", "in-doubt 3 4>5 a", "loss 4 5>5 a"}
		if !slices.Equal(got, want) || !strings.Contains(ds[0].Reason, `"operator anna"`) || !strings.Contains(ds[2].Reason, "fenced by the broker") {
			t.Errorf("the log says %q, want %q: %+v", got, want, ds)
		}
		p.end()
	})
}

func TestAHaltIsRecordedAgainWithEachNewReason(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		r.fill(0, 1)
		var failure atomic.Pointer[error]
		fails := func(err error) { failure.Store(&err) }
		fails(errors.New("it is no order"))
		p := r.start("a", consumer.Each(func(context.Context, *memsink.Tx, consumer.Message, epoch.Epoch) error { return *failure.Load() }), options{})
		r.pass(10 * time.Minute)
		if halt := r.halt(0); !strings.HasPrefix(halt, "message_failed: ") {
			t.Errorf("the audit log says %q", halt)
		}
		fails(fmt.Errorf("the disk is full: %w", epoch.ErrUnhealthy))
		r.pass(10 * time.Minute)
		if halt := r.halt(0); !strings.HasPrefix(halt, "unhealthy: ") {
			t.Errorf("the audit log says %q", halt)
		}
		if ds := r.decided(0, operate.DecidedHalt); len(ds) != 2 {
			t.Errorf("two halts are %d entries: %v", len(ds), ds)
		}
		if halts := seen[consumer.Halted](p); len(halts) < 5 {
			t.Errorf("it was tried only %d times", len(halts))
		}
		p.end()
	})
}

func TestADecisionLogThatCannotBeWrittenHoldsNothingUp(t *testing.T) {
	const partitions = 8 // which have more to tell than the log has room for
	inBubble(t, partitions, func(r *rig) {
		var calls atomic.Int32
		broken := memsink.Hooks{Record: func(ctx context.Context, _ []operate.Decision, _ func() error) error {
			calls.Add(1)
			<-ctx.Done() // a database that does not answer
			return ctx.Err()
		}}
		p := r.start("a", each(record), options{}, broken)
		want := map[int32][]string{}
		for n := range int32(partitions) {
			want[n] = r.fill(n, 3)
		}
		r.pass(time.Second)
		for range 400 {
			for n := range int32(partitions) {
				r.acts(operate.ActEvict, n)
				r.log.Append(n, "more")
				want[n] = append(want[n], "more")
			}
			r.pass(200 * time.Millisecond)
		}
		r.pass(5 * time.Second)
		for n := range int32(partitions) {
			r.wantEffects(n, want[n]...)
		}
		began := time.Now()
		p.end()
		if took := time.Since(began); took > 3*time.Second {
			t.Errorf("Run took %v to end", took)
		}
		missing := 0
		for _, u := range seen[consumer.Unrecorded](p) {
			missing += u.Decisions
		}
		if stale := len(seen[consumer.Stale](p)); missing != stale || stale < 2500 || calls.Load() == 0 {
			t.Errorf("%d decisions are said to be missing, of %d", missing, stale)
		}
	})
}
