package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/memsource"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/suites/bubble"
	"github.com/epochfence/epochfence/sinks/memsink"
)

// fillKeys appends count messages, with the keys in turn. The value of a message says its key and how many
// of it came before.
func (r *rig) fillKeys(n int32, count int, keys ...string) {
	ms, seen := make([]consumer.Message, count), map[string]int{}
	for i := range ms {
		key := keys[i%len(keys)]
		ms[i] = consumer.Message{Key: []byte(key), Value: fmt.Appendf(nil, "%s/%d", key, seen[key])}
		seen[key]++
	}
	r.log.AppendMessages(n, ms...)
}

func keys(n int) []string {
	ks := make([]string, n)
	for i := range ks {
		ks[i] = fmt.Sprintf("k%02d", i)
	}
	return ks
}

// recordKey appends a value to the list of its key.
func recordKey(_ context.Context, tx tx, m consumer.Message, _ epoch.Epoch) error {
	tx.Append(keyList(m.Partition.Number, string(m.Key)), string(m.Value))
	return nil
}

func keyList(n int32, key string) string { return fmt.Sprintf("%d, key %q", n, key) }

// wantKeys fails the test unless each key has count messages in order, without some of them.
func (r *rig) wantKeys(n int32, count int, keys []string, without ...string) {
	r.Helper()
	for _, key := range keys {
		var want []string
		for i := range count {
			if v := fmt.Sprintf("%s/%d", key, i); !slices.Contains(without, v) {
				want = append(want, v)
			}
		}
		if got := r.sink.List(keyList(n, key)); !slices.Equal(got, want) {
			r.Errorf("key %q of partition %d: got %v, want %v", key, n, got, want)
		}
	}
}

// waiting is a handler that waits, and counts how many calls do.
type waiting struct {
	mu    sync.Mutex
	open  map[string]bool // by partition and key
	most  int
	twice []string
	then  handler
}

func (w *waiting) handle(ctx context.Context, tx tx, m consumer.Message, e epoch.Epoch) error {
	of := keyList(m.Partition.Number, string(m.Key))
	w.mu.Lock()
	if w.open[of] {
		w.twice = append(w.twice, of)
	}
	w.open[of] = true
	w.most = max(w.most, len(w.open))
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.open, of)
	}()
	<-time.After(10 * time.Millisecond)
	return w.then(ctx, tx, m, e)
}

func waits10ms(then handler) *waiting { return &waiting{open: map[string]bool{}, then: then} }

func TestMessagesOfOneKeyAreInOrderAndThoseOfOthersBesideThem(t *testing.T) {
	for _, n := range []int{1, 7, 1000} {
		t.Run(fmt.Sprint(n, " at a time"), func(t *testing.T) {
			inBubble(t, 2, func(r *rig) {
				r.fillKeys(0, 200, keys(20)...)
				r.fillKeys(1, 100, keys(10)...) // the same names, and other keys
				h, began := waits10ms(recordKey), time.Now()
				p := r.start("a", consumer.EachKey(h.handle, n), options{})
				r.applied()
				took := time.Since(began)
				r.wantKeys(0, 10, keys(20))
				r.wantKeys(1, 10, keys(10))
				if len(h.twice) > 0 || h.most != min(n, 30) && h.most != min(n, 20) {
					t.Errorf("%d handlers ran at a time, want %d; those of one key beside each other: %v", h.most, n, h.twice)
				}
				if want := 300 / min(n, 20) * 10; took > time.Duration(want+100)*time.Millisecond {
					t.Errorf("it took %v, want about %d ms", took, want)
				}
				p.end()
			})
		})
	}
}

func TestMessagesWithoutAKeyAreInOrder(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		r.log.Append(0, "/0", "/1", "/2", "/3")
		h := waits10ms(recordKey)
		p := r.start("a", consumer.EachKey(h.handle, 4), options{})
		r.applied()
		r.wantKeys(0, 4, []string{""})
		p.end()
	})
}

// failing is what a message does wrong.
var failing = map[string]func() error{
	"an error": func() error { return errors.New("out of stock") },
	"a panic":  func() error { panic("out of stock") },
	"Goexit":   func() error { runtime.Goexit(); return nil },
}

func TestAMessageOfOneKeyFailsAmongOthersAndItAloneIsADeadLetter(t *testing.T) {
	for name, fails := range failing {
		t.Run(name, func(t *testing.T) {
			inBubble(t, 1, func(r *rig) {
				r.fillKeys(0, 1000, keys(100)...)
				var tries atomic.Int32
				h := waits10ms(func(ctx context.Context, tx tx, m consumer.Message, e epoch.Epoch) error {
					if string(m.Value) == "k42/7" {
						tries.Add(1)
						return fails()
					}
					return recordKey(ctx, tx, m, e)
				})
				p := r.start("a", consumer.EachKey(h.handle, 100).OnFailure(r.sink.DeadLetter), options{MaxAttempts: 3})
				r.applied()
				r.wantKeys(0, 10, keys(100), "k42/7")
				dead := r.sink.DeadLetters()
				if len(dead) != 1 || string(dead[0].Message.Value) != "k42/7" || len(h.twice) > 0 {
					t.Errorf("dead letters: %+v; of one key beside each other: %v", dead, h.twice)
				}
				if n := tries.Load(); n != 4 { // among others, and three times alone
					t.Errorf("it was tried %d times", n)
				}
				p.end()
			})
		})
	}
}

// A handler that fails only beside others is no poison: each message is applied.
func TestWhatFailsOnlyBesideOthersIsAppliedInOrder(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		r.fillKeys(0, 64, keys(16)...)
		var open, failed atomic.Int32
		h := func(ctx context.Context, tx tx, m consumer.Message, e epoch.Epoch) error {
			defer open.Add(-1)
			if open.Add(1) > 1 {
				failed.Add(1)
				return errors.New("not beside another")
			}
			<-time.After(time.Millisecond)
			return recordKey(ctx, tx, m, e)
		}
		p := r.start("a", consumer.EachKey(h, 8).OnFailure(r.sink.DeadLetter), options{MaxAttempts: 1})
		r.applied()
		r.wantKeys(0, 4, keys(16))
		if dead := r.sink.DeadLetters(); len(dead) > 0 || failed.Load() == 0 {
			t.Errorf("%d failed, dead letters: %v", failed.Load(), dead)
		}
		p.end()
	})
}

func TestCallsThatHangBesideOthersCostTheirPartitionsAlone(t *testing.T) {
	inBubble(t, 3, func(r *rig) {
		h := hangsOn("k01/1", "k03/0")
		for n := range int32(3) {
			r.fillKeys(n, 20, keys(5)...)
		}
		on := h.on
		h.on = func(m consumer.Message) bool { return m.Partition.Number == 1 && on(m) }
		record := func(ctx context.Context, tx tx, m consumer.Message, e epoch.Epoch) error {
			if !h.on(m) {
				return recordKey(ctx, tx, m, e)
			}
			return h.handle(ctx, tx, m, e)
		}
		a := r.start("a", consumer.EachKey(record, 10), options{BatchTimeout: time.Second, MaxHung: 1})
		r.pass(5 * time.Second)
		r.wantKeys(0, 4, keys(5))
		r.wantKeys(2, 4, keys(5))
		o := wantOne[consumer.Overdue](a) // one for the partition, whatever hangs in it
		if o.Partition != r.partition(1) || o.Function != consumer.FunctionHandler || !strings.Contains(o.Stack, "hanging).handle") {
			t.Errorf("overdue: %+v", o)
		}
		if l := wantOne[consumer.Lost](a); l.Partition != r.partition(1) || l.Reason != consumer.ReasonHung {
			t.Errorf("lost: %+v", l)
		}
		// The next owner tries what hung alone, in which both hang nobody.
		b := r.start("b", consumer.EachKey(recordKey, 10), options{})
		r.pass(5 * time.Second)
		r.wantKeys(1, 4, keys(5))
		h.release()
		if h.late.Load() != h.in.Load() {
			t.Errorf("%d late writes were refused, of %d", h.late.Load(), h.in.Load())
		}
		if back := wantOne[consumer.Returned](a); back.Partition != r.partition(1) {
			t.Errorf("returned: %+v", back)
		}
		r.wantKeys(1, 4, keys(5))
		a.end()
		b.end()
	})
}

// One of several hangs in each process: once it was alone often enough, OnFailure has it.
func TestAMessageThatHangsBesideOthersIsADeadLetterInTheEnd(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		r.fillKeys(0, 50, keys(10)...)
		h := hangsOn("k03/2")
		handle := func(ctx context.Context, tx tx, m consumer.Message, e epoch.Epoch) error {
			if h.on(m) {
				return h.handle(ctx, tx, m, e)
			}
			return recordKey(ctx, tx, m, e)
		}
		var ps []*process
		for i := range 3 {
			ps = append(ps, r.start(fmt.Sprint(i), consumer.EachKey(handle, 10).OnFailure(r.sink.DeadLetter), options{BatchTimeout: time.Second, MaxAttempts: 2}))
			r.pass(10 * time.Second)
		}
		r.wantKeys(0, 5, keys(10), "k03/2")
		if dead := r.sink.DeadLetters(); len(dead) != 1 || string(dead[0].Message.Value) != "k03/2" {
			t.Errorf("dead letters: %+v", dead)
		}
		h.release()
		for _, p := range ps {
			p.end()
		}
	})
}

func TestOnFailureAndReplaysRunAlone(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		r.fillKeys(0, 40, keys(10)...)
		var open, others atomic.Int32
		var fixed atomic.Bool
		alone := func(f func() error) error {
			others.Add(open.Load())
			defer func() { others.Add(open.Load()) }()
			<-time.After(time.Millisecond)
			return f()
		}
		h := consumer.EachKey(func(ctx context.Context, tx tx, m consumer.Message, e epoch.Epoch) error {
			if m.Replay != 0 {
				return alone(func() error { return recordKey(ctx, tx, m, e) })
			}
			open.Add(1)
			defer open.Add(-1)
			<-time.After(time.Millisecond)
			if string(m.Value) == "k05/1" && !fixed.Load() {
				return consumer.Permanent(errors.New("poison"))
			}
			return recordKey(ctx, tx, m, e)
		}, 10).OnFailure(func(ctx context.Context, tx tx, m consumer.Message, e epoch.Epoch, cause error) error {
			return alone(func() error { return r.sink.DeadLetter(ctx, tx, m, e, cause) })
		})
		p := r.start("a", h, options{})
		r.applied()
		r.wantKeys(0, 4, keys(10), "k05/1")
		fixed.Store(true)
		r.requests()
		r.pass(time.Minute)
		if got := r.sink.List(keyList(0, "k05")); !slices.Equal(got, []string{"k05/0", "k05/2", "k05/3", "k05/1"}) || others.Load() > 0 {
			t.Errorf("the key has %v; %d others ran meanwhile", got, others.Load())
		}
		p.end()
	})
}

// failure at random: everything is applied once and in order of its key, whatever goes wrong.
func TestEachKeyIsExactWhateverGoesWrong(t *testing.T) {
	for seed := range uint64(bubble.Rounds(40)) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			inBubble(t, 2, func(r *rig) {
				var mu sync.Mutex
				rng := rand.New(rand.NewPCG(seed, 2))
				roll := func(n int) bool {
					mu.Lock()
					defer mu.Unlock()
					return rng.IntN(n) == 0
				}
				faults := memsink.Hooks{Commit: func(_ context.Context, _ []epoch.Advance, do func() error) error {
					switch {
					case roll(10):
						_ = do()
						return epoch.ErrInDoubt // its answer is lost
					case roll(10):
						return epoch.ErrInDoubt
					case roll(10):
						return epoch.ErrTransient
					}
					return do()
				}}
				var healed atomic.Bool
				h := waits10ms(func(ctx context.Context, tx tx, m consumer.Message, e epoch.Epoch) error {
					if err := recordKey(ctx, tx, m, e); err != nil || healed.Load() {
						return err
					}
					switch {
					case roll(150):
						return errors.New("not this time")
					case roll(300):
						panic("not this time")
					case roll(400):
						runtime.Goexit()
					case roll(200):
						<-ctx.Done()
						return ctx.Err()
					case roll(100):
						return fmt.Errorf("waits: %w", epoch.ErrTransient)
					}
					return nil
				})
				r.fillKeys(0, 200, keys(20)...)
				r.fillKeys(1, 60, keys(3)...)
				o := options{BatchTimeout: 2 * time.Second, MaxAttempts: 1000, MaxBatch: 64}
				a := r.start("a", consumer.EachKey(h.handle, 6), o, faults)
				r.pass(3 * time.Second)
				b := r.start("b", consumer.EachKey(h.handle, 6), o, faults) // takes one of the partitions over
				r.pass(20 * time.Second)
				healed.Store(true)
				r.applied()
				r.wantKeys(0, 10, keys(20))
				r.wantKeys(1, 20, keys(3))
				a.end()
				b.end()
			})
		})
	}
}

func TestATransactionOfManyKeysGrowsAlthoughItsHandlersWait(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		r.fillKeys(0, 20_000, keys(100)...)
		h, began := waits10ms(recordKey), time.Now()
		p := r.start("a", consumer.EachKey(h.handle, 100), options{})
		r.applied()
		most := 0
		for _, e := range seen[consumer.Transacted](p) {
			most = max(most, e.Messages)
		}
		if took := time.Since(began); most < 2048 || took > 2200*time.Millisecond {
			t.Errorf("the largest transaction had %d messages; all took %v", most, took)
		}
		p.end()
	})
}

func TestTheFirstTransactionHasWorkForAllThatMayRunBesideEachOther(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		r.fillKeys(0, 4000, keys(1000)...)
		began := time.Now()
		p := r.start("a", consumer.EachKey(func(ctx context.Context, tx tx, m consumer.Message, e epoch.Epoch) error {
			<-time.After(500 * time.Millisecond)
			return recordKey(ctx, tx, m, e)
		}, 1000), options{})
		r.applied()
		if took := time.Since(began); took > 2100*time.Millisecond {
			t.Errorf("4 messages of each key took %v", took)
		}
		p.end()
	})
}

// inTurn is a sink that runs calls in order.
type inTurn struct{ *memsink.Sink }

func (s inTurn) Facts() epoch.Facts {
	f := s.Sink.Facts()
	f.Beside = false
	return f
}

func TestRunRefusesEachKeyOnASinkThatRunsCallsInOrder(t *testing.T) {
	log, sink := memsource.New("orders", 1), inTurn{memsink.New()}
	err := consumer.Run(t.Context(), log.Member("a"), sink, consumer.EachKey(record, 2), options{})
	if err == nil || !strings.Contains(err.Error(), "EachKey needs a sink that runs the calls of a transaction beside each other") {
		t.Error(err)
	}
	if err := consumer.Run(t.Context(), log.Member("a"), memsink.New(), consumer.EachKey(record, 0), options{}); err == nil || !strings.Contains(err.Error(), "want at least 1") {
		t.Error(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	stop()
	if err := consumer.Run(ctx, log.Member("a"), sink, consumer.EachKey(record, 1), options{}); err != nil {
		t.Errorf("one at a time: %v", err)
	}
}

func TestALeaseIsLostWhileHandlersRunBesideEachOther(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		r.fillKeys(0, 30, keys(10)...)
		var hold atomic.Bool
		hold.Store(true)
		var cut atomic.Int32
		h := func(ctx context.Context, tx tx, m consumer.Message, e epoch.Epoch) error {
			if hold.Load() {
				<-ctx.Done()
				cut.Add(1)
				return ctx.Err()
			}
			return recordKey(ctx, tx, m, e)
		}
		a := r.start("a", consumer.EachKey(h, 5), options{})
		synctest.Wait()
		a.member.Freeze()
		hold.Store(false)
		b := r.start("b", consumer.EachKey(h, 5), options{})
		r.applied()
		r.wantKeys(0, 3, keys(10))
		if cut.Load() != 5 {
			t.Errorf("%d handlers were cut off, want 5", cut.Load())
		}
		a.member.Thaw()
		r.pass(time.Second)
		r.wantKeys(0, 3, keys(10))
		a.end()
		b.end()
	})
}
