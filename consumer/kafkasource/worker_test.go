package kafkasource

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
)

// sink keeps fences and what was applied, as a database would.
type sink struct {
	mu      sync.Mutex
	changed chan struct{}
	fences  epoch.Fences
	applied map[epoch.Partition][]epoch.Offset
	claims  map[epoch.Partition][]epoch.Fence
	errs    map[epoch.Partition][]error
	ended   map[epoch.Partition]int
}

func newSink() *sink {
	return &sink{
		changed: make(chan struct{}), fences: epoch.Fences{},
		applied: map[epoch.Partition][]epoch.Offset{}, claims: map[epoch.Partition][]epoch.Fence{},
		errs: map[epoch.Partition][]error{}, ended: map[epoch.Partition]int{},
	}
}

// do changes the sink, and tells those who wait.
func (s *sink) do(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
	close(s.changed)
	s.changed = make(chan struct{})
}

// until waits for cond, which is called with the sink locked.
func (r *rig) until(what string, cond func() bool) {
	r.Helper()
	limit := time.After(patience)
	for {
		r.sink.mu.Lock()
		ok, changed := cond(), r.sink.changed
		r.sink.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-changed:
		case <-limit:
			r.Fatalf("timed out waiting until %s", what)
		}
	}
}

func part(n int32) epoch.Partition {
	return epoch.Partition{Group: testGroup, Topic: testTopic, Number: n}
}

// worker is what consumer.Run does, without what these tests do not need.
type worker struct {
	*sink
	name  string
	start consumer.StartPolicy
	gate  func(ctx context.Context, p epoch.Partition) // before a claim; may wait
	apply func(ctx context.Context, ms []consumer.Message) error
	pause time.Duration // after an error
}

func (w *worker) own(ctx context.Context, t consumer.Tenure) {
	p := t.Origin().Partition
	defer w.do(func() { w.ended[p]++ })
	for {
		err := w.claimAndConsume(ctx, t)
		if err == nil {
			return
		}
		w.do(func() { w.errs[p] = append(w.errs[p], err) })
		if errors.Is(err, consumer.ErrLost) {
			return
		}
		pause := w.pause
		if pause == 0 {
			pause = 100 * time.Millisecond
		}
		select {
		case <-time.After(pause):
		case <-t.Draining():
			return
		case <-ctx.Done():
			return
		}
	}
}

func (w *worker) claimAndConsume(ctx context.Context, t consumer.Tenure) error {
	f, err := w.claim(ctx, t)
	if err != nil {
		return err
	}
	for b, err := range t.Read(ctx, f) {
		if err != nil {
			return err
		}
		if w.apply != nil {
			if err := w.apply(ctx, b.Messages); err != nil {
				return err
			}
		}
		if f, err = w.advance(f, b); err != nil {
			return err
		}
		t.Mirror(f)
	}
	return nil
}

func (w *worker) claim(ctx context.Context, t consumer.Tenure) (epoch.Fence, error) {
	p := t.Origin().Partition
	if w.gate != nil {
		w.gate(ctx, p)
	}
	w.mu.Lock()
	seen, err := w.fences.Read(p)
	w.mu.Unlock()
	if errors.Is(err, epoch.ErrMissing) {
		starts, err := t.Starts(ctx, w.start)
		if err != nil {
			return seen, err
		}
		w.mu.Lock()
		err = w.fences.Seed(starts)
		if err == nil {
			seen, err = w.fences.Read(p)
		}
		w.mu.Unlock()
		if err != nil {
			return seen, err
		}
	}
	if err := seen.Check(t.Origin()); err != nil {
		return seen, err
	}
	lease, err := t.Confirm(ctx, seen)
	if err != nil {
		return seen, err
	}
	var got epoch.Fence
	w.do(func() {
		if got, err = w.fences.Claim(seen, epoch.NewClaim(lease)); err == nil {
			w.claims[p] = append(w.claims[p], got)
		}
	})
	return got, err
}

func (w *worker) advance(f epoch.Fence, b consumer.Batch) (epoch.Fence, error) {
	a := epoch.Advance{Partition: f.Partition, Claim: f.Claim, From: f.Next, To: b.Next, Mark: b.Mark}
	next, err := f.Advanced(a)
	if err != nil {
		return f, err
	}
	w.do(func() {
		if err = w.fences.Advance([]epoch.Advance{a}); err == nil {
			for _, m := range b.Messages {
				w.applied[f.Partition] = append(w.applied[f.Partition], m.Offset)
			}
		}
	})
	return next, err
}

// fence, errors and others look at the sink while workers run.
func (s *sink) fence(p epoch.Partition) epoch.Fence {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.fences[p]
}

func (s *sink) errors(p epoch.Partition) []error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.errs[p])
}

func (s *sink) offsets(p epoch.Partition) []epoch.Offset {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.applied[p])
}

func (s *sink) count(p epoch.Partition) (claims, ended int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.claims[p]), s.ended[p]
}

// exactly reports whether the offsets 0 to n-1 were applied, once each and in
// order.
func (s *sink) exactly(p epoch.Partition, n int) bool {
	if len(s.applied[p]) != n {
		return false
	}
	for i, o := range s.applied[p] {
		if o != epoch.Offset(i) {
			return false
		}
	}
	return true
}

func (s *sink) owners() []string {
	owners := map[string]bool{}
	for _, f := range s.fences {
		owners[f.Owner] = true
	}
	return slices.Sorted(maps.Keys(owners))
}
