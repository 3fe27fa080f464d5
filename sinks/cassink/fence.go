package cassink

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"
	"unicode/utf8"

	"golang.org/x/sync/errgroup"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/form"
	"github.com/epochfence/epochfence/internal/waits"
	"github.com/epochfence/epochfence/operate"
)

// This file reads, makes, claims and replaces the item of a fence. An item for each topic decides
// once where its partitions begin; epoch.Fences decides what is allowed. For how long an answer that
// is older than one before is taken for a store that lags is decided here.

// record is what a fence's item has.
type record struct {
	form.Kept
	epoch.Fence
	ClaimedAt, AdvancedAt time.Time

	// Act names the action of SetUnder.
	Act string `json:",omitempty"`

	// LastID is that of the entry of the audit log about the last write of the fence by a claim or an action. The
	// entry is written first.
	LastID int64

	// Pending are ids of dead letters that exist by this write of the fence, while their own items do not
	// say so yet.
	Pending []int64 `json:",omitempty"`

	LastEntry int64 `json:",omitempty"` // the highest id of an entry of the outbox, or of a dead letter
	riding

	unreadable error // of one that is only listed
}

// item is a record and the item that has it.
type item struct {
	stored cas.Item
	record record

	kept  kept  // after whole: the item of the lists
	lists lists // as the record has changed them
}

// fence reads a fence. A store may answer with an older one, and a consumer takes that for a sink that
// went back, so an answer that is older than one before is believed only if it stays so.
func (s *Sink) fence(ctx context.Context, p epoch.Partition) (item, error) {
	return s.fenceFrom(ctx, p, s.readFence(ctx, p))
}

// fenceFrom is fence, with the first answer.
func (s *Sink) fenceFrom(ctx context.Context, p epoch.Partition, first cas.Written) (item, error) {
	pause := waits.New(10*time.Millisecond, 500*time.Millisecond)
	for end := time.Now().Add(lagging); ; first = s.readFence(ctx, p) {
		at, err := fenceIn(first, p)
		if err != nil {
			return item{}, err
		}
		if !s.older(at.record) || time.Now().After(end) || !waits.Sleep(ctx, pause.Next()) {
			s.saw(at.record)
			return at, nil
		}
	}
}

// lagging limits for how long an answer may be older than one before.
const lagging = 2 * time.Second

func (s *Sink) readFence(ctx context.Context, p epoch.Partition) (r cas.Written) {
	r.Item, r.Err = s.store.Get(ctx, s.keys.fence(p))
	return r
}

func fenceIn(r cas.Written, p epoch.Partition) (at item, err error) {
	if errors.Is(r.Err, cas.ErrForeign) {
		return item{}, fmt.Errorf("%w: %w", epoch.ErrUnhealthy, r.Err)
	}
	if r.Err != nil {
		return item{}, r.Err
	}
	if at.stored = r.Item; !at.stored.Live {
		return item{}, &epoch.MissingError{Partition: p}
	}
	at.record, err = decode(at.stored)
	if err == nil && at.record.Partition != p {
		err = fmt.Errorf("item %q is about %s", at.stored.Key, at.record.Partition)
	}
	return at, err
}

func decode(stored cas.Item) (r record, err error) {
	if err := form.Parse(stored.Value, &r); err != nil {
		return record{}, fmt.Errorf("%w: fence %q: %w", epoch.ErrUnhealthy, stored.Key, err)
	}
	return r, nil
}

func (s *Sink) older(r record) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	last := s.seen[r.Partition]
	return r.Epoch < last.Epoch || r.Epoch == last.Epoch && r.Claim == last.Claim && (r.Next < last.Next || r.LastEntry < last.LastEntry)
}

func (s *Sink) saw(r record) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen[r.Partition] = record{Fence: r.Fence, LastEntry: r.LastEntry}
}

// swap writes a fence over the item that was read.
func (s *Sink) swap(ctx context.Context, over cas.Item, r record) (item, error) {
	for _, text := range []string{r.Partition.Group, r.Partition.Topic, r.Log, r.Source, r.Owner} {
		if !utf8.ValidString(text) {
			return item{}, fmt.Errorf("%q is not UTF-8", text)
		}
	}
	value, err := form.Text(&r)
	if err != nil {
		return item{}, err
	}
	stored, err := s.store.Swap(ctx, over, value, nil)
	if err != nil {
		return item{}, doubtful(err)
	}
	s.saw(r)
	return item{stored: stored, record: r}, nil
}

// change replaces a fence by what do makes of it, unless do returns an error.
func (s *Sink) change(ctx context.Context, p epoch.Partition, do func(r *record) error) (after item, err error) {
	err = repeated(ctx, func() error {
		at, err := s.fence(ctx, p)
		if err == nil {
			err = do(&at.record)
		}
		if err == nil {
			after, err = s.swap(ctx, at.stored, at.record)
		}
		return err
	})
	return after, err
}

// repeated reads and replaces an item by do, again for as long as others are faster.
func repeated(ctx context.Context, do func() error) error {
	pause := waits.New(5*time.Millisecond, 500*time.Millisecond)
	for {
		err := do()
		if !errors.Is(err, cas.ErrConflict) {
			return err
		}
		if !waits.Sleep(ctx, pause.Next()) {
			return fmt.Errorf("%w, as others were faster", ctx.Err())
		}
	}
}

// newer reads a fence until it is another item than one that a swap has refused.
func (s *Sink) newer(ctx context.Context, p epoch.Partition, than cas.Item) (at item, err error) {
	pause := waits.New(5*time.Millisecond, 500*time.Millisecond)
	for {
		if at, err = s.fence(ctx, p); err != nil || at.stored.Version != than.Version {
			return at, err
		}
		if !waits.Sleep(ctx, pause.Next()) {
			return item{}, ctx.Err()
		}
	}
}

// newest returns a fence as it is: reads may lag, so it is written as it was read.
func (s *Sink) newest(ctx context.Context, p epoch.Partition) (item, error) {
	return s.change(ctx, p, func(*record) error { return nil })
}

// Seed implements [epoch.Sink]. One item for each group and topic has where each partition begins. A
// partition is added to it once and never changed, and the fences are made from it.
func (s *Sink) Seed(ctx context.Context, starts []epoch.Start) error {
	if len(starts) == 0 {
		return nil
	}
	var begins []epoch.Fence
	err := repeated(ctx, func() (err error) {
		begins, err = s.decide(ctx, starts)
		return err
	})
	// What was decided before is completed in any case, so that operators can act on it.
	if err = errors.Join(err, s.addFences(ctx, begins)); err != nil {
		return fmt.Errorf("cassink: seed %s and %d more: %w", starts[0].Partition, len(starts)-1, err)
	}
	return nil
}

// beginning is what the item of a topic has: its fences as they were added.
type beginning struct {
	form.Kept
	Fences map[int32]epoch.Fence
}

// decide adds the partitions to the item of the topic, and returns where they begin. If it adds none, it
// returns an error and where the others begin.
func (s *Sink) decide(ctx context.Context, starts []epoch.Start) ([]epoch.Fence, error) {
	group, topic := starts[0].Partition.Group, starts[0].Partition.Topic
	var beginning beginning
	stored, err := read(ctx, s.store, s.keys.topic(group, topic), &beginning)
	if err != nil {
		return nil, err
	}
	begins := beginning.Fences
	if begins == nil {
		begins = map[int32]epoch.Fence{}
	}
	for _, text := range []string{group, topic} {
		if !utf8.ValidString(text) {
			return nil, fmt.Errorf("%q is not UTF-8", text)
		}
	}
	fences := epoch.Fences{}
	added := false
	for _, f := range begins {
		fences[f.Partition] = f
	}
	for _, start := range starts {
		_, known := begins[start.Partition.Number]
		added = added || !known
	}
	if added { // an operator may have accepted other logs since
		now, err := s.Look(ctx, slices.Collect(maps.Keys(fences)))
		if err != nil {
			return nil, err
		}
		maps.Copy(fences, now)
	}
	refused := fences.Seed(starts)
	var found []epoch.Fence
	for _, start := range starts {
		n := start.Partition.Number
		if _, known := begins[n]; !known && refused == nil {
			begins[n] = fences[start.Partition]
		}
		if f, known := begins[n]; known {
			found = append(found, f)
		}
	}
	if refused != nil {
		return found, refused
	}
	if !added {
		return found, nil
	}
	beginning.Fences = begins
	value, err := form.Text(&beginning)
	if err != nil {
		return nil, err
	}
	_, err = s.store.Swap(ctx, stored, value, nil)
	return found, err
}

func (s *Sink) addFences(ctx context.Context, fs []epoch.Fence) error {
	var writers errgroup.Group
	writers.SetLimit(sideBySide)
	for _, f := range fs {
		writers.Go(func() error { return s.addFence(ctx, f) })
	}
	return writers.Wait()
}

func (s *Sink) addFence(ctx context.Context, f epoch.Fence) error {
	stored, err := s.store.Get(ctx, s.keys.fence(f.Partition))
	if err != nil || stored.Live {
		return err
	}
	if _, err := s.swap(ctx, stored, record{Fence: f}); err != nil && !errors.Is(err, cas.ErrConflict) {
		return err
	}
	return nil
}

// Claim implements [epoch.Sink].
func (s *Sink) Claim(ctx context.Context, seen epoch.Fence, c epoch.Claim) (epoch.Fence, error) {
	if _, err := s.store.Facts(ctx); errors.Is(err, cas.ErrUnsuitable) {
		return epoch.Fence{}, fmt.Errorf("cassink: claim %s: %w", c.Partition, err)
	}
	at, err := s.change(ctx, c.Partition, func(r *record) error {
		before := r.Fence
		after, err := epoch.Fences{c.Partition: before}.Claim(seen, c)
		if err != nil {
			return err
		}
		_ = s.announce(ctx, r, operate.Claimed(before, after, operate.TraceID(ctx)))
		r.Fence, r.ClaimedAt = after, now()
		return nil
	})
	if err != nil {
		return epoch.Fence{}, fmt.Errorf("cassink: claim %s: %w", c.Partition, err)
	}
	if whole, err := s.whole(ctx, at); err == nil {
		s.hold(whole)
	} // or the first commit reads it
	return at.record.Fence, nil
}

func (s *Sink) hold(at item) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held[at.record.Partition] = at
}

// ours returns the fence with this claim as it was written last, or reads it, with its lists.
func (s *Sink) ours(ctx context.Context, p epoch.Partition, claim epoch.ClaimID) (item, error) {
	s.mu.Lock()
	at, ok := s.held[p]
	s.mu.Unlock()
	if ok && at.record.Claim == claim {
		return at, nil
	}
	at, err := s.fence(ctx, p)
	if err != nil {
		return item{}, err
	}
	return s.whole(ctx, at)
}

func (s *Sink) forget(p epoch.Partition) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.held, p)
}

func now() time.Time { return time.Now().UTC().Truncate(time.Microsecond) }
