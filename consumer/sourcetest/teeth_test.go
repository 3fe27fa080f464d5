package sourcetest_test

import (
	"context"
	"iter"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/sourcetest"
	"github.com/epochfence/epochfence/epoch"
)

// fault is a way in which a source is broken, and a history that must notice.
type fault struct {
	name  string
	claim string // begins like this
	alone bool   // play no other history: the fault makes data races there
	world func(b *broken)
}

// broken is memsource's harness with something wrong.
type broken struct {
	*memory
	t testing.TB

	// What is wrong. A nil function is what memsource does.
	run     func(ctx context.Context, s consumer.Source, joined func(error), own func(context.Context, consumer.Tenure)) error
	tenure  func(t tenure) consumer.Tenure
	produce func()
	member  func(group, member string) (string, string)
}

func newBroken(t testing.TB, f fault) *broken {
	b := &broken{memory: newMemory(200 * time.Millisecond), t: t}
	f.world(b)
	return b
}

func (b *broken) NewSource(t testing.TB, group string, topics []string, member string) consumer.Source {
	if b.member != nil {
		group, member = b.member(group, member)
	}
	return &brokenSource{Source: b.memory.NewSource(t, group, topics, member), b: b}
}

func (b *broken) NewStatic(t testing.TB, group string, topics []string, instance string) consumer.Source {
	return b.NewSource(t, group, topics, instance)
}

func (b *broken) Freeze(t testing.TB, s consumer.Source) (thaw func()) {
	return b.memory.Freeze(t, s.(*brokenSource).Source)
}

func (b *broken) Regrant(t testing.TB, s consumer.Source, topic string, n int32) {
	b.memory.Regrant(t, s.(*brokenSource).Source, topic, n)
}

func (b *broken) Produce(t testing.TB, topic string, n int32, ms ...consumer.Message) {
	b.memory.Produce(t, topic, n, ms...)
	if b.produce != nil {
		b.produce()
	}
}

type brokenSource struct {
	consumer.Source
	b *broken
}

func (s *brokenSource) Run(ctx context.Context, joined func(error), own func(context.Context, consumer.Tenure)) error {
	wrapped := func(ctx context.Context, t consumer.Tenure) {
		if s.b.tenure != nil {
			t = s.b.tenure(tenure{Tenure: t})
		}
		own(ctx, t)
	}
	if s.b.run != nil {
		return s.b.run(ctx, s.Source, joined, wrapped)
	}
	return s.Source.Run(ctx, joined, wrapped)
}

// tenure is one whose methods can be replaced.
type tenure struct {
	consumer.Tenure
	confirm   func(ctx context.Context, seen epoch.Fence) (epoch.Lease, error)
	read      func(ctx context.Context, from epoch.Fence) iter.Seq2[consumer.Batch, error]
	starts    func(ctx context.Context, policy consumer.StartPolicy) ([]epoch.Start, error)
	committed func(ctx context.Context) (epoch.Position, bool, error)
	lag       func(ctx context.Context, from epoch.Fence) (int64, error)
	mirror    func(at epoch.Fence)
	draining  <-chan struct{}
	origin    func(o epoch.Origin) epoch.Origin
	term      time.Duration
}

func (t *tenure) Confirm(ctx context.Context, seen epoch.Fence) (epoch.Lease, error) {
	if t.confirm != nil {
		return t.confirm(ctx, seen)
	}
	return t.Tenure.Confirm(ctx, seen)
}

func (t *tenure) Read(ctx context.Context, from epoch.Fence) iter.Seq2[consumer.Batch, error] {
	if t.read != nil {
		return t.read(ctx, from)
	}
	return t.Tenure.Read(ctx, from)
}

func (t *tenure) Starts(ctx context.Context, policy consumer.StartPolicy) ([]epoch.Start, error) {
	if t.starts != nil {
		return t.starts(ctx, policy)
	}
	return t.Tenure.Starts(ctx, policy)
}

func (t *tenure) Committed(ctx context.Context) (epoch.Position, bool, error) {
	if t.committed != nil {
		return t.committed(ctx)
	}
	return t.Tenure.Committed(ctx)
}

func (t *tenure) Lag(ctx context.Context, from epoch.Fence) (int64, error) {
	if t.lag != nil {
		return t.lag(ctx, from)
	}
	return t.Tenure.Lag(ctx, from)
}

func (t *tenure) Mirror(at epoch.Fence) {
	if t.mirror != nil {
		t.mirror(at)
		return
	}
	t.Tenure.Mirror(at)
}

func (t *tenure) Draining() <-chan struct{} {
	if t.draining != nil {
		return t.draining
	}
	return t.Tenure.Draining()
}

func (t *tenure) Term() time.Duration {
	if t.term != 0 {
		return t.term
	}
	return t.Tenure.Term()
}

func (t *tenure) Origin() epoch.Origin {
	if t.origin != nil {
		return t.origin(t.Tenure.Origin())
	}
	return t.Tenure.Origin()
}

var faults = slices.Concat(confirmFaults, messageFaults, readFaults, originFaults, runFaults)

// toothPatience is how long a history waits before it calls a source broken, in
// virtual time.
const toothPatience = 3 * time.Second

func TestTheSuiteFindsNothingWrongWithASourceThatIsNotBroken(t *testing.T) {
	create := func(t testing.TB) sourcetest.Harness { return newBroken(t, fault{world: func(*broken) {}}) }
	for claim, err := range sourcetest.Play(t, "", create, toothPatience) {
		if err != nil {
			t.Errorf("%s: %v", claim, err)
		}
	}
}

// With EPOCHFENCE_LONG each broken source plays all histories, and each history must
// fail for one of them.
func TestTheSuiteFailsEveryBrokenSource(t *testing.T) {
	long := os.Getenv("EPOCHFENCE_LONG") != ""
	teeth, played := map[string]int{}, 0
	for _, f := range faults {
		t.Run(f.name, func(t *testing.T) {
			prefix := ""
			if f.alone || !long {
				prefix = f.claim
			}
			create := func(t testing.TB) sourcetest.Harness { return newBroken(t, f) }
			noticed := false
			for claim, err := range sourcetest.Play(t, prefix, create, toothPatience) {
				teeth[claim] += 0
				if err == nil || strings.HasPrefix(err.Error(), "panic") {
					continue
				}
				teeth[claim]++
				noticed = noticed || strings.HasPrefix(claim, f.claim)
				t.Logf("noticed by %q: %v", claim, err)
			}
			if !noticed {
				t.Errorf("not noticed by: %s", f.claim)
			}
			played++
		})
	}
	if played < len(faults) || !long {
		return // only some were played
	}
	for claim, n := range teeth {
		if n == 0 {
			t.Errorf("no fault makes this fail, so it may not be able to: %s", claim)
		}
	}
}
