package cassink

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/waits"
	"github.com/epochfence/epochfence/operate"
)

// This file has what a running consumer needs of operators: the audit log, requests and replays.
// An entry about a write of the fence comes first, and counts if the fence names it.

var _ operate.Operable[*Tx] = (*Sink)(nil)

// keptDecisions limits the entries of the audit log that are kept of each partition.
const keptDecisions = 500

// logged is an entry of the audit log.
type logged struct {
	operate.Decision

	// OfFence means that the entry is about a write of the fence that comes after it, and After is the LastID of the
	// fence before. The entry is true if the fence, or a later one that is true, names it.
	OfFence bool  `json:",omitempty"`
	After   int64 `json:",omitempty"`
}

// announce adds an entry to the audit log, before the write of the fence that it is about. The log is no
// part of the fence, which would grow with it.
func (s *Sink) announce(ctx context.Context, r *record, d operate.Decision) error {
	last := r.LastID
	err := s.addToLog(ctx, r.Partition, func(old []logged) []logged {
		if i := slices.IndexFunc(old, func(e logged) bool { return e.ID > last }); i >= 0 { // may be true, soon
			old = append(trueOf(old[:i], last), old[i:]...)
		} else {
			old = trueOf(old, last)
		}
		d.At, d.ID = now(), max(newID(), lastID(old)+1, last+1)
		return append(old, logged{Decision: d, OfFence: true, After: last})
	})
	if err == nil {
		r.LastID = d.ID
	}
	return err
}

// log adds entries that are about no write of the fence. They become the last, also if the clock of this
// process is behind.
func (s *Sink) log(ctx context.Context, p epoch.Partition, ds []operate.Decision) error {
	return s.addToLog(ctx, p, func(old []logged) []logged {
		for _, d := range ds {
			d.At, d.ID = now(), max(newID(), lastID(old)+1)
			old = append(old, logged{Decision: d})
		}
		return old
	})
}

func (s *Sink) addToLog(ctx context.Context, p epoch.Partition, add func(old []logged) []logged) error {
	return replace(ctx, s.store, s.keys.log(p), func(old []logged) ([]logged, error) {
		return recent(add(old), keptDecisions, s.facts), nil
	})
}

// trueOf returns the entries of a log, oldest first, that are true if the fence has this LastID.
func trueOf(log []logged, last int64) []logged {
	var found []logged
	for _, e := range slices.Backward(log) {
		if e.OfFence && e.ID > last {
			continue // its write was refused, or has not landed
		}
		if e.OfFence {
			last = e.After
		}
		found = append(found, e)
	}
	slices.Reverse(found)
	return found
}

// mostBytes limits the value of an item that has the newest of something, so that every store can have it.
const mostBytes = 128 << 10

// recent returns the last elements, at most so many, and as many as an item may have.
func recent[T any](all []T, most int, f cas.Facts) []T {
	room, n := mostBytes, 0
	if f.MaxValue > 0 {
		room = min(room, f.MaxValue)
	}
	for room--; n < min(len(all), most); n++ {
		text, err := json.Marshal(all[len(all)-1-n])
		if room -= len(text) + 1; err != nil || room < 0 {
			break
		}
	}
	return all[len(all)-n:]
}

func lastID(ds []logged) (last int64) {
	for _, d := range ds {
		last = max(last, d.ID)
	}
	return last
}

// replace replaces the value of an item by what do makes of it.
func replace[T any](ctx context.Context, store cas.Store, key string, do func(old T) (T, error)) error {
	pause := waits.New(5*time.Millisecond, 500*time.Millisecond)
	for {
		var value T
		stored, err := read(ctx, store, key, &value)
		if err != nil {
			return err
		}
		if value, err = do(value); err != nil {
			return err
		}
		text, err := json.Marshal(value)
		if err != nil {
			return err
		}
		if _, err = store.Swap(ctx, stored, text, nil); err == nil || !errors.Is(err, cas.ErrConflict) {
			return err
		}
		if !waits.Sleep(ctx, pause.Next()) {
			return ctx.Err()
		}
	}
}

func read[T any](ctx context.Context, store cas.Store, key string, value *T) (cas.Item, error) {
	stored, err := store.Get(ctx, key)
	if err != nil || !stored.Live {
		return stored, err
	}
	if err := json.Unmarshal(stored.Value, value); err != nil {
		return stored, fmt.Errorf("item %q is not the sink's: %w", key, err)
	}
	return stored, nil
}

// Record implements [operate.Operable].
func (s *Sink) Record(ctx context.Context, ds []operate.Decision) error {
	byPartition := map[epoch.Partition][]operate.Decision{}
	for _, d := range ds {
		if !d.Kind.RecordedByConsumer() {
			return fmt.Errorf("cassink: record: a consumer records no %s", d.Kind)
		}
		d = d.WithoutOperator()
		d.ID = 0
		byPartition[d.Partition] = append(byPartition[d.Partition], d)
	}
	for p, of := range byPartition {
		if err := s.log(ctx, p, of); err != nil {
			return fmt.Errorf("cassink: record %d decisions: %w", len(ds), err)
		}
	}
	return nil
}

// decisions returns the log of a partition, oldest first.
func (s *Sink) decisions(ctx context.Context, p epoch.Partition) ([]operate.Decision, error) {
	at, err := s.readFence(ctx, p)
	if err != nil && !errors.Is(err, epoch.ErrMissing) {
		return nil, err
	}
	var log []logged
	if _, err := read(ctx, s.store, s.keys.log(p), &log); err != nil {
		return nil, err
	}
	return decisionsOf(log, at.record.LastID), nil
}

func decisionsOf(log []logged, last int64) (ds []operate.Decision) {
	for _, e := range trueOf(log, last) {
		ds = append(ds, e.Decision)
	}
	return ds
}

// Hangs implements [operate.Operable].
func (s *Sink) Hangs(ctx context.Context, p epoch.Partition) (found []operate.Decision, err error) {
	ds, err := s.decisions(ctx, p)
	if err != nil {
		return nil, fmt.Errorf("cassink: read what hung on %s: %w", p, err)
	}
	for _, d := range slices.Backward(ds) {
		switch {
		case d.Kind.ForgivesHangs() || len(found) == operate.MaxHangs:
			return found, nil
		case d.Kind.IsHang():
			found = append(found, d)
		}
	}
	return found, nil
}

// requests is what owners of partitions poll: a number that changes with each act, and the replays that
// were requested.
type requests struct {
	Acts    int64
	Replays []requested `json:",omitempty"`
	Retries []requested `json:",omitempty"` // of entries of the outbox
}

// requested names a dead letter, or an entry of the outbox.
type requested struct {
	Partition epoch.Partition
	ID        int64
}

// replaysAtATime limits the messages of one partition that a poll reads.
const replaysAtATime = 32

// Requests implements [operate.Operable].
func (s *Sink) Requests(ctx context.Context, ps []epoch.Partition) (found operate.Requests, err error) {
	var all requests
	if _, err = read(ctx, s.store, s.keys.requests(), &all); err != nil {
		return found, fmt.Errorf("cassink: look for requests about %d partitions: %w", len(ps), err)
	}
	found.Acts = all.Acts
	slices.SortFunc(all.Replays, func(a, b requested) int { return cmp.Compare(a.ID, b.ID) })
	of := map[epoch.Partition]int{}
	for _, r := range all.Replays {
		if !slices.Contains(ps, r.Partition) || of[r.Partition] == replaysAtATime {
			continue
		}
		at, err := s.letter(ctx, r.Partition, r.ID)
		if err == nil {
			at.letter, err = s.wholeLetter(ctx, at.letter)
		}
		if errors.Is(err, operate.ErrNoDeadLetter) {
			continue
		}
		if err != nil {
			return operate.Requests{}, fmt.Errorf("cassink: look for requests about %d partitions: %w", len(ps), err)
		}
		if at.letter.Requested {
			of[r.Partition]++
			found.Replays = append(found.Replays, operate.RequestedReplay{ID: r.ID, Request: at.letter.Request, Message: at.letter.message()})
		}
	}
	return found, nil
}

// Replayed implements [operate.Operable]. The dead letter is deleted after the items and the fence were
// written. If that fails, the message is replayed again, which changes nothing twice.
func (s *Sink) Replayed(ctx context.Context, tx *Tx, r operate.RequestedReplay, _ epoch.Epoch) error {
	if err := tx.usable(); err != nil {
		return err
	}
	p := r.Message.Partition
	if tx.goal.Partition != p {
		return fmt.Errorf("cassink: replay dead letter %d of %s: this transaction is not under a claim of that partition", r.ID, p)
	}
	at, err := s.letter(ctx, p, r.ID)
	switch {
	case errors.Is(err, operate.ErrNoDeadLetter), err == nil && !at.letter.is(r):
		return fmt.Errorf("cassink: replay dead letter %d of %s: %w", r.ID, p, operate.ErrNotRequested)
	case err != nil:
		return lost(err)
	}
	tx.mu.Lock()
	defer tx.mu.Unlock()
	tx.replays = append(tx.replays, at)
	if slices.Contains(tx.lists.Replayed, r.ID) {
		tx.added = nil // it has added them
	}
	return nil
}

func (l letter) is(r operate.RequestedReplay) bool { return l.Requested && l.Request == r.Request }

// beginReplays marks the dead letters whose changes are about to be written, so that nobody discards one
// in the middle of that.
func (t *transaction) beginReplays(ctx context.Context) error {
	for i, at := range t.replays {
		at.letter.Under = t.goal.Claim
		at, err := t.sink.swapLetter(ctx, at)
		if errors.Is(err, cas.ErrConflict) {
			return fmt.Errorf("replay dead letter %d of %s: %w", at.letter.ID, at.letter.Partition, operate.ErrNotRequested)
		}
		if err != nil {
			return doubtful(err)
		}
		t.replays[i] = at
	}
	return nil
}

// isReplayed returns an error while the owner of the partition may be writing the changes of a dead letter.
func (s *Sink) isReplayed(ctx context.Context, l letter) error {
	if l.Under == (epoch.ClaimID{}) {
		return nil
	}
	at, err := s.newest(ctx, l.Partition)
	switch {
	case errors.Is(err, epoch.ErrMissing):
		return nil
	case err != nil:
		return err
	case at.record.Claim == l.Under:
		return fmt.Errorf("%w: its replay is under way; if that does not end, evict the owner first", operate.ErrDeadLetterChanged)
	}
	return nil
}

// finishReplay deletes the dead letters that the transaction has replayed.
func (s *Sink) finishReplay(ctx context.Context, t *transaction) error {
	for _, at := range t.replays {
		err := s.deleteLetter(ctx, at)
		if errors.Is(err, cas.ErrConflict) {
			return fmt.Errorf("replay dead letter %d of %s: %w", at.letter.ID, at.letter.Partition, operate.ErrNotRequested)
		}
		if err != nil {
			return doubtful(err)
		}
		s.removed(at.letter)
		s.settled(ctx, at.letter, operate.DecidedReplay, t.fence.Epoch, t.fence, "")
	}
	return nil
}

// removed has the next write of the fence leave out a dead letter that is gone.
func (s *Sink) removed(l letter) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if at, ok := s.held[l.Partition]; ok {
		at.record.leave(l.ID)
		at.lists = at.lists.without([]int64{l.ID})
		s.held[l.Partition] = at
	}
}

// settled records the end of a request, at best effort.
func (s *Sink) settled(ctx context.Context, l letter, kind operate.DecisionKind, e epoch.Epoch, f epoch.Fence, why string) {
	_ = s.log(ctx, l.Partition, []operate.Decision{{
		Kind: kind, Partition: l.Partition, Epoch: e, Claim: f.Claim, Owner: f.Owner,
		From: l.Offset, To: l.Offset, Reason: fmt.Sprintf("dead letter %d%s", l.ID, why), By: l.RequestedBy,
	}})
	_ = s.request(ctx, l, false)
}

// request adds a dead letter to what owners of partitions poll, or removes it.
func (s *Sink) request(ctx context.Context, l letter, wanted bool) error {
	this := requested{l.Partition, l.ID}
	return replace(ctx, s.store, s.keys.requests(), func(old requests) (requests, error) {
		old.Replays = slices.DeleteFunc(old.Replays, func(r requested) bool { return r == this })
		if wanted {
			old.Replays = append(old.Replays, this)
		}
		return old, nil
	})
}

// ReplayFailed implements [operate.Operable].
func (s *Sink) ReplayFailed(ctx context.Context, r operate.RequestedReplay, e epoch.Epoch, cause error) error {
	p := r.Message.Partition
	l, err := s.changeLetter(ctx, p, r.ID, func(l *letter) error {
		if !l.is(r) {
			return operate.ErrNotRequested
		}
		l.Requested, l.ReplayError, l.ReplayFailedAt, l.Under = false, operate.ErrorText(cause), now(), epoch.ClaimID{}
		return nil
	})
	switch {
	case errors.Is(err, operate.ErrNotRequested), errors.Is(err, operate.ErrNoDeadLetter):
		return nil
	case err != nil:
		return fmt.Errorf("cassink: record that the replay of dead letter %d of %s has failed: %w", r.ID, p, err)
	}
	at, err := s.readFence(ctx, p)
	if err != nil {
		at = item{}
	}
	s.settled(ctx, l, operate.DecidedReplayFailure, e, at.record.Fence, ": "+l.ReplayError)
	return nil
}
