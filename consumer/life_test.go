package consumer_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/operate"
	"github.com/epochfence/epochfence/sinks/memsink"
)

// processes lists those of the group.
func (r *rig) processes() operate.Lives {
	r.Helper()
	ps, err := r.sink.Operator().Processes(r.Context(), r.group().Name())
	if err != nil {
		r.Fatal(err)
	}
	return ps
}

func TestAProcessGivesSignsOfLifeUntilItHasDrained(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		began := time.Now()
		var signs atomic.Int64
		counted := memsink.Hooks{Alive: func(_ context.Context, _ operate.Process, do func() error) error {
			signs.Add(1)
			return do()
		}}
		a := r.start("a", each(record), options{}, counted)
		synctest.Wait()
		b := r.start("b", each(record), options{}) // has no partition
		synctest.Wait()
		if n := r.processes().Alive(r.group().Name()); n != 2 {
			t.Errorf("%d processes are alive, want 2: %+v", n, r.processes())
		}
		r.pass(time.Hour)
		owner, ok := r.processes().Owner(r.sink.Fences()[r.partition(0)])
		host, _ := os.Hostname()
		if !ok || owner.Name != "a" || owner.Host != host || owner.PID != os.Getpid() || !strings.Contains(owner.Version, "epochfence") ||
			!owner.Since.Equal(began.UTC()) || !owner.Alive() {
			t.Errorf("the owner is %+v", owner)
		}
		// One comes at the start, and perhaps one as it becomes a member.
		if most := int64(time.Hour / owner.Every); signs.Load() > most+2 || signs.Load() < most {
			t.Errorf("%d signs of life in an hour, want %d", signs.Load(), most)
		}
		a.end()
		b.end()
		if left := r.processes(); len(left) != 0 {
			t.Errorf("after all have ended: %+v", left)
		}
	})
}

func TestAnOwnerThatIsGoneIsToldFromOneThatIsAlive(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		var dead atomic.Bool
		dies := memsink.Hooks{Alive: func(_ context.Context, _ operate.Process, do func() error) error {
			if dead.Load() {
				return nil
			}
			return do()
		}}
		a := r.start("a", each(record), options{}, dies)
		r.pass(time.Minute)
		dead.Store(true)
		r.pass(10 * time.Minute)
		owner, ok := r.processes().Owner(r.sink.Fences()[r.partition(0)])
		if silent := owner.Now.Sub(owner.Seen); !ok || owner.Alive() || silent < 9*time.Minute {
			t.Errorf("the owner is %+v", owner)
		}
		a.end()
	})
}

func TestASignOfLifeThatIsUnderWayAtTheEndIsNotLeft(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		slow := memsink.Hooks{Alive: func(ctx context.Context, _ operate.Process, do func() error) error {
			done := make(chan error, 1)
			go func() { // the server carries it out, also if nobody waits for the answer
				<-time.After(100 * time.Millisecond)
				done <- do()
			}()
			select {
			case err := <-done:
				return err
			case <-ctx.Done():
				return ctx.Err()
			}
		}}
		a := r.start("a", each(record), options{}, slow)
		synctest.Wait()
		a.end()
		r.pass(time.Second)
		if left := r.processes(); len(left) != 0 {
			t.Errorf("after the process has ended: %+v", left)
		}
	})
}

func TestASignOfLifeThatFailsCostsNothingAndIsSaidOnce(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		var broken atomic.Bool
		broken.Store(true)
		fails := memsink.Hooks{Alive: func(ctx context.Context, _ operate.Process, do func() error) error {
			if broken.Load() {
				<-ctx.Done() // for as long as it may take
				return errors.New("no such function")
			}
			return do()
		}}
		var log bytes.Buffer
		p := r.process("a", []memsink.Hooks{fails})
		o := p.watched(options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
		p.run(func(ctx context.Context) error { return consumer.Run(ctx, p.member, p.sink, each(record), o) })
		want := r.fill(0, 3)
		r.pass(time.Second)
		r.wantEffects(0, want...)
		r.pass(time.Hour)
		broken.Store(false)
		r.pass(time.Hour)
		p.end()
		if n := strings.Count(log.String(), "takes no sign of life"); n != 1 {
			t.Errorf("it is said %d times, want once:\n%s", n, log.String())
		}
		if n := strings.Count(log.String(), "has a sign of life of this process again"); n != 1 {
			t.Errorf("that it is over is said %d times, want once:\n%s", n, log.String())
		}
	})
}

func TestASignOfLifeSaysWhatHangs(t *testing.T) {
	inBubble(t, 2, func(r *rig) {
		h := hangsOn("1/0")
		r.fill(0, 1)
		r.fill(1, 1)
		a := r.start("a", each(h.handle), options{BatchTimeout: time.Second, MaxHung: 1})
		r.pass(4 * time.Second) // less than the wait between two signs
		fence := r.sink.Fences()[r.partition(1)]
		owner, _ := r.processes().Owner(fence)
		if said := owner.Hangs(fence); !strings.Contains(said, "the handler hangs on the message at offset 0") || !owner.Alive() {
			t.Errorf("the owner of what hangs says %q", said)
		}
		if said := owner.Hangs(r.sink.Fences()[r.partition(0)]); said != "" {
			t.Errorf("of the other partition it says %q", said)
		}
		h.release()
		r.pass(time.Second)
		if ps := r.processes(); len(ps) != 1 || ps[0].Problems != "" {
			t.Errorf("after the call has returned: %+v", ps)
		}
		a.end()
	})
}

// burdened is a sink whose database has snapshots.
type burdened struct {
	epoch.Sink[tx]
	held func() []operate.Snapshot
}

func (s burdened) Unwrap() epoch.Sink[tx] { return s.Sink }

func (s burdened) OldestSnapshots(context.Context) ([]operate.Snapshot, error) { return s.held(), nil }

func TestWhoHoldsAnOldSnapshotIsSaidOnceAndReportedAlways(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		var transactions atomic.Int64
		held := func() []operate.Snapshot {
			return []operate.Snapshot{{Holder: operate.HolderSession, Name: "pg_dump", PID: 4711, Transactions: transactions.Load()}}
		}
		var log bytes.Buffer
		p := r.process("a", nil)
		o := p.watched(options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
		p.run(func(ctx context.Context) error {
			return consumer.Run(ctx, p.member, burdened{p.sink, held}, each(record), o)
		})
		says := func(text string, times int) {
			t.Helper()
			r.pass(time.Hour)
			if n := strings.Count(log.String(), text); n != times {
				t.Errorf("%q is said %d times, want %d:\n%s", text, n, times, log.String())
			}
		}
		const warning = `level=WARN msg="an old snapshot is held`
		says(warning, 0)
		transactions.Store(2_000_000)
		says(warning, 1)
		says("holder=session name=pg_dump pid=4711 transactions=2000000", 1)
		transactions.Store(0)
		says("no old snapshot is held", 1)
		p.end()
		p.mu.Lock()
		defer p.mu.Unlock()
		reports := 0
		for _, e := range p.events {
			if s, is := e.(consumer.SnapshotsHeld); is && s.Oldest[0].Name == "pg_dump" {
				reports++
			}
		}
		if reports < 4*60*3 { // 15 s from one to the next
			t.Errorf("%d reports in four hours", reports)
		}
	})
}
