package consumer_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/sinks/memsink"
	"github.com/epochfence/epochfence/sinks/shardsink"
)

// shardedRig is a topic whose partitions are in two databases: the even ones in the
// first, the odd ones in the second.
type shardedRig struct {
	*rig
	shards [2]*memsink.Sink
}

func inShardedBubble(t *testing.T, partitions int32, test func(r *shardedRig)) {
	inBubble(t, partitions, func(r *rig) { test(&shardedRig{r, [2]*memsink.Sink{r.sink, memsink.New()}}) })
}

func (r *shardedRig) sinkOf(route func(epoch.Partition, int) int) *shardsink.Sink[tx] {
	s, err := shardsink.New(route, epoch.Sink[tx](r.shards[0]), r.shards[1])
	if err != nil {
		r.Fatal(err)
	}
	return s
}

// start runs a process on both databases. Their hooks are the test's.
func (r *shardedRig) start(sink epoch.Sink[tx], h handlers, o options) *process {
	p := r.process("a", nil)
	p.run(func(ctx context.Context) error { return consumer.Run(ctx, p.member, sink, h, p.watched(o)) })
	return p
}

func (r *shardedRig) wantEffects(n int32, want ...string) {
	r.Helper()
	if got := r.shards[n%2].List(list(n)); !slices.Equal(got, want) {
		r.Errorf("effects of partition %d:\n got %v\nwant %v", n, got, want)
	}
	if got := r.shards[1-n%2].List(list(n)); len(got) > 0 {
		r.Errorf("effects of partition %d in the wrong database: %v", n, got)
	}
}

func TestEachShardHasCommittersOfItsOwn(t *testing.T) {
	for _, committers := range []int{1, 2} {
		inShardedBubble(t, 8, func(r *shardedRig) {
			var mu sync.Mutex
			open, most := [2]int{}, [2]int{}
			release := make(chan struct{})
			for i, db := range r.shards {
				db.Script(memsink.Hooks{Commit: func(_ context.Context, _ []epoch.Advance, do func() error) error {
					mu.Lock()
					open[i]++
					most[i] = max(most[i], open[i])
					mu.Unlock()
					<-release
					mu.Lock()
					open[i]--
					mu.Unlock()
					return do()
				}})
			}
			p := r.start(r.sinkOf(shardsink.ByNumber), each(record), options{Committers: committers})
			synctest.Wait()
			want := map[int32][]string{}
			for n := range int32(8) {
				want[n] = r.fill(n, 3)
				synctest.Wait() // so that each finds a committer, if there is a free one
			}
			if want := [2]int{committers, committers}; most != want {
				t.Errorf("with %d committers, so many transactions were open at a time in each shard: %v", committers, most)
			}
			close(release)
			synctest.Wait()
			p.end()
			for n := range int32(8) {
				r.wantEffects(n, want[n]...)
			}
		})
	}
}

func TestNoTransactionMixesShards(t *testing.T) {
	inShardedBubble(t, 6, func(r *shardedRig) {
		// One in the first, five in the second: spread evenly over the committers they would mix.
		route := func(p epoch.Partition, _ int) int { return min(int(p.Number), 1) }
		var shared atomic.Bool
		for i, db := range r.shards {
			db.Script(memsink.Hooks{Commit: func(_ context.Context, as []epoch.Advance, do func() error) error {
				if len(as) > 1 {
					shared.Store(true)
				}
				for _, a := range as {
					if route(a.Partition, 2) != i {
						t.Errorf("shard %d is to commit %v", i, as)
					}
				}
				<-time.After(time.Millisecond)
				return do()
			}})
		}
		p := r.start(r.sinkOf(route), each(record), options{MaxBatch: 5})
		want := map[int32][]string{}
		for n := range int32(6) {
			want[n] = r.fill(n, 100)
		}
		r.pass(time.Minute)
		p.end()
		for n := range int32(6) {
			if got := r.shards[min(n, 1)].List(list(n)); !slices.Equal(got, want[n]) {
				t.Errorf("effects of partition %d:\n got %v\nwant %v", n, got, want[n])
			}
		}
		if doubts := seen[consumer.InDoubt](p); len(doubts) > 0 || !shared.Load() {
			t.Errorf("in doubt: %v; a transaction was shared: %v", doubts, shared.Load())
		}
		if claims := seen[consumer.Claimed](p); len(claims) != 6 {
			t.Errorf("%d claims of six partitions", len(claims))
		}
	})
}

func TestAShardThatIsDownHaltsItsOwnPartitionsAlone(t *testing.T) {
	inShardedBubble(t, 4, func(r *shardedRig) {
		p := r.start(r.sinkOf(shardsink.ByNumber), each(record), options{})
		want := map[int32][]string{}
		for n := range int32(4) {
			want[n] = r.fill(n, 5)
		}
		r.pass(time.Second)
		down := errors.New("connection refused")
		r.shards[1].Script(memsink.Hooks{
			Fence:  func(context.Context, epoch.Partition, func() error) error { return down },
			Look:   func(context.Context, []epoch.Partition, func() error) error { return down },
			Seed:   func(context.Context, []epoch.Start, func() error) error { return down },
			Claim:  func(context.Context, epoch.Claim, func() error) error { return down },
			Commit: func(context.Context, []epoch.Advance, func() error) error { return errors.Join(epoch.ErrInDoubt, down) },
		})
		for n := range int32(4) {
			r.log.Append(n, "during")
		}
		r.pass(time.Second)
		for _, n := range []int32{0, 2} {
			want[n] = append(want[n], "during")
			r.wantEffects(n, want[n]...)
		}
		r.pass(10 * time.Minute)
		for _, n := range []int32{0, 2} {
			r.log.Append(n, "still")
			want[n] = append(want[n], "still")
		}
		r.pass(time.Second)
		for n := range int32(4) {
			r.wantEffects(n, want[n]...)
		}
		r.shards[1].Script(memsink.Hooks{})
		r.pass(2 * time.Minute)
		p.end()
		for _, n := range []int32{1, 3} {
			r.wantEffects(n, append(want[n], "during")...)
		}
		halted := map[int32]bool{}
		for _, h := range seen[consumer.Halted](p) {
			halted[h.Partition.Number] = true
		}
		if halted[0] || halted[2] || !halted[1] || !halted[3] {
			t.Errorf("halted: %v", halted)
		}
	})
}

func TestAProcessThatIsRestartedWhileAShardIsDownGoesOnWithTheOthers(t *testing.T) {
	inShardedBubble(t, 4, func(r *shardedRig) {
		p := r.start(r.sinkOf(shardsink.ByNumber), each(record), options{})
		r.pass(time.Second)
		p.end()
		down := errors.New("connection refused")
		r.shards[1].Script(memsink.Hooks{
			Fence: func(context.Context, epoch.Partition, func() error) error { return down },
			Look:  func(context.Context, []epoch.Partition, func() error) error { return down },
		})
		zero, one := r.fill(0, 3), r.fill(1, 3)
		p = r.start(r.sinkOf(shardsink.ByNumber), each(record), options{})
		r.pass(time.Second)
		r.wantEffects(0, zero...)
		r.shards[1].Script(memsink.Hooks{})
		r.pass(time.Minute)
		r.wantEffects(1, one...)
		p.end()
	})
}

func TestAPartitionThatIsKeptElsewhereHaltsWithTheReasonAndTheOthersGoOn(t *testing.T) {
	inShardedBubble(t, 2, func(r *shardedRig) {
		p := r.start(r.sinkOf(shardsink.ByNumber), each(record), options{})
		r.pass(time.Second)
		p.end()
		allInTheFirst := func(epoch.Partition, int) int { return 0 }
		p = r.start(r.sinkOf(allInTheFirst), each(record), options{})
		zero, one := r.fill(0, 3), r.fill(1, 3)
		r.pass(10 * time.Minute)
		p.end()
		r.wantEffects(0, zero...)
		r.wantEffects(1)
		halts := seen[consumer.Halted](p)
		if len(halts) < 5 || len(halts) > 40 {
			t.Errorf("halted %d times in ten minutes; want a wait that grows to a minute", len(halts))
		}
		for _, h := range halts {
			if h.Partition != r.partition(1) || !errors.Is(h.Err, epoch.ErrElsewhere) {
				t.Errorf("halted: %+v", h)
			}
		}
		p = r.start(r.sinkOf(shardsink.ByNumber), each(record), options{})
		r.pass(time.Second)
		p.end()
		r.wantEffects(1, one...)
	})
}

func TestAShardThatWentBackIsNoticedAtOnceAndItsEffectsComeBack(t *testing.T) {
	inShardedBubble(t, 2, func(r *shardedRig) {
		p := r.start(r.sinkOf(shardsink.ByNumber), each(record), options{})
		zero, one := r.fill(0, 3), r.fill(1, 3)
		r.pass(time.Second)
		backup := r.shards[1].Snapshot()
		more := []string{"x", "y"}
		r.log.Append(0, more...)
		r.log.Append(1, more...)
		r.pass(time.Second)
		r.shards[1].Restore(backup)
		r.pass(3 * time.Second)
		r.wantEffects(0, append(zero, more...)...)
		r.wantEffects(1, append(one, more...)...)
		p.end()
		back := wantOne[consumer.WentBack](p)
		if back.Now.Partition != r.partition(1) {
			t.Errorf("%+v", back)
		}
	})
}

// none is a sink that says that it has no database.
type none struct{ *shardsink.Sink[tx] }

func (none) Shards() int { return 0 }

func TestASinkWithoutShardsIsRefusedAtStart(t *testing.T) {
	inShardedBubble(t, 1, func(r *shardedRig) {
		err := consumer.Run[tx](r.Context(), r.group().Member("a"), none{r.sinkOf(shardsink.ByNumber)}, each(record), options{})
		if err == nil || !strings.Contains(err.Error(), "0 shards") {
			t.Errorf("Run: %v", err)
		}
	})
}

func TestAPartitionThatNoShardHasIsNotClaimedAndHoldsUpNoOther(t *testing.T) {
	inShardedBubble(t, 2, func(r *shardedRig) {
		p := r.start(r.sinkOf(func(p epoch.Partition, _ int) int { return 5 * int(p.Number) }), each(record), options{})
		zero, _ := r.fill(0, 3), r.fill(1, 3)
		r.pass(time.Minute)
		p.end()
		r.wantEffects(0, zero...)
		r.wantEffects(1)
		for _, h := range seen[consumer.Halted](p) {
			if h.Partition == r.partition(1) && strings.Contains(h.Err.Error(), "shard 5") {
				return
			}
		}
		t.Error("nobody is told why")
	})
}
