package schedule

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/operate"
	"github.com/epochfence/epochfence/sinks/memsink"
)

// Processes are cut off, stopped and evicted, and lose answers: each tick and each step is done once, in order.
func TestChaos(t *testing.T) {
	for seed := range uint64(3) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			inWorld(t, func(w *world) {
				r := rand.New(rand.NewPCG(seed, 1))
				const n = 7
				queued := writes("queued", "*/20 * * * * *")
				queued.CatchUp, queued.Overrun = CatchUpAll, OverrunQueue
				doQ := queued.Do
				queued.Do = func(ctx context.Context, tx *memsink.Tx, t Tick, e epoch.Epoch) error {
					if rand.IntN(10) == 0 {
						return errors.New("flaky")
					}
					if rand.IntN(30) == 0 {
						panic("flaky")
					}
					return doQ(ctx, tx, t, e)
				}
				steps := memJob{Name: "steps", Cron: "*/30 * * * * *", CatchUp: CatchUpAll, Overrun: OverrunQueue, Step: func(ctx context.Context, tx *memsink.Tx, t Tick, _ epoch.Epoch) (bool, error) {
					if t.Step >= n {
						return true, nil
					}
					if rand.IntN(6) == 0 {
						return false, errors.New("flaky")
					}
					select {
					case <-time.After(time.Duration(rand.IntN(4000)) * time.Millisecond):
					case <-ctx.Done():
						return false, ctx.Err()
					}
					tx.Append("steps", fmt.Sprintf("%d/%d", t.At.Unix(), t.Step))
					return t.Step == n-1, nil
				}}
				var pods []*pod
				var calm atomic.Bool
				start := func(i int) *pod {
					p := w.newPod(fmt.Sprint("p", i), queued, steps)
					p.sink.Script(memsink.Hooks{Commit: func(ctx context.Context, _ []epoch.Advance, do func() error) error {
						if calm.Load() {
							return do()
						}
						switch rand.IntN(12) {
						case 0:
							return epoch.ErrInDoubt
						case 1:
							_ = do()
							return epoch.ErrInDoubt
						case 2:
							<-time.After(time.Duration(rand.IntN(20)) * time.Second)
						}
						return do()
					}})
					p.start(plain, consumer.Options{MaxAttempts: 1000})
					return p
				}
				for i := range 3 {
					pods = append(pods, start(i))
				}
				for range 60 {
					<-time.After(time.Duration(r.IntN(20)) * time.Second)
					i := r.IntN(3)
					switch r.IntN(6) {
					case 0, 1:
						pods[i].wire.set(true)
					case 2, 3:
						pods[i].wire.set(false)
					case 4:
						pods[i].stop()
						if err := <-pods[i].done; err != nil && !errors.As(err, new(*consumer.HungError)) {
							t.Fatal(err)
						}
						pods[i] = start(i)
					case 5:
						job := []string{"queued", "steps"}[r.IntN(2)]
						f, err := epoch.FenceOf(w.Context(), w.db, epoch.Partition{Group: group, Topic: job})
						if err == nil && f.Epoch > 0 {
							_, _ = w.db.Operator().Act(w.Context(), operate.NewAct(operate.ActEvict, f, "amy", "chaos"))
						}
					}
				}
				for _, p := range pods {
					p.wire.set(false)
				}
				calm.Store(true)
				<-time.After(5 * time.Minute)
				now := time.Now().Unix()
				for _, p := range pods {
					p.end()
				}
				got := w.db.List("steps")
				at, next := int64(0), 0
				for _, l := range got {
					var a int64
					var s int
					_, _ = fmt.Sscanf(l, "%d/%d", &a, &s)
					if at == 0 {
						at = a
					}
					if next == n {
						at, next = at+30, 0
					}
					if a != at || s != next {
						t.Fatalf("at %s, want %d/%d", l, at, next)
					}
					next++
				}
				if now-at > 90 {
					t.Errorf("the last run is at %d, now is %d", at, now)
				}
				q := w.db.List("queued")
				for i := 1; i < len(q); i++ {
					a, b := clock(t, q[i-1]), clock(t, q[i])
					if b.Sub(a) != 20*time.Second {
						t.Fatalf("%s then %s", q[i-1], q[i])
					}
				}
				if d := time.Unix(now, 0).Sub(clock(t, q[len(q)-1])); d > time.Minute {
					t.Errorf("queued: last %s, now %v", q[len(q)-1], time.Unix(now, 0).UTC())
				}
			})
		})
	}
}
