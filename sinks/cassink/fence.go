package cassink

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/waits"
)

// This file reads and replaces the item of a fence. It decides how long an answer that is older
// than one before is taken for a store that lags.

// record is what a fence's item has.
type record struct {
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
func (s *Sink) fence(ctx context.Context, p epoch.Partition) (at item, err error) {
	pause := waits.New(10*time.Millisecond, 500*time.Millisecond)
	for end := time.Now().Add(lagging); ; {
		if at, err = s.readFence(ctx, p); err != nil {
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

func (s *Sink) readFence(ctx context.Context, p epoch.Partition) (at item, err error) {
	at.stored, err = s.store.Get(ctx, s.keys.fence(p))
	if errors.Is(err, cas.ErrForeign) {
		return item{}, fmt.Errorf("%w: %w", epoch.ErrUnhealthy, err)
	}
	if err != nil {
		return item{}, err
	}
	if !at.stored.Live {
		return item{}, &epoch.MissingError{Partition: p}
	}
	at.record, err = decode(at.stored)
	if err == nil && at.record.Partition != p {
		err = fmt.Errorf("item %q is about %s", at.stored.Key, at.record.Partition)
	}
	return at, err
}

func decode(stored cas.Item) (r record, err error) {
	if err := json.Unmarshal(stored.Value, &r); err != nil {
		return record{}, fmt.Errorf("item %q is no fence: %w", stored.Key, err)
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
	value, err := json.Marshal(r)
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

// change replaces a fence by what do makes of it, unless do returns an error. It reads the fence again
// for as long as others are faster.
func (s *Sink) change(ctx context.Context, p epoch.Partition, do func(r *record) error) (item, error) {
	pause := waits.New(5*time.Millisecond, 500*time.Millisecond)
	for {
		at, err := s.fence(ctx, p)
		if err != nil {
			return item{}, err
		}
		if err := do(&at.record); err != nil {
			return item{}, err
		}
		after, err := s.swap(ctx, at.stored, at.record)
		if err == nil || !errors.Is(err, cas.ErrConflict) {
			return after, err
		}
		if !waits.Sleep(ctx, pause.Next()) {
			return item{}, fmt.Errorf("%w, as others were faster: %w", ctx.Err(), err)
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
