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
	"github.com/epochfence/epochfence/operate"
)

// This file has what else a running consumer needs of operators: requests and replays, the calls that
// hung, and a sign of life of each process. Package operate decides who is alive.

var _ operate.Operable[*Tx] = (*Sink)(nil)

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

const keptProcess = 7 * 24 * time.Hour

// Alive implements [operate.Operable].
func (s *Sink) Alive(ctx context.Context, p operate.Process) error {
	if err := s.alive(ctx, p); err != nil {
		return fmt.Errorf("cassink: sign of life of %s in group %q: %w", p.Name, p.Group, err)
	}
	return nil
}

func (s *Sink) alive(ctx context.Context, p operate.Process) error {
	err := replace(ctx, s.store, s.keys.process(p.Run), func(before operate.Process) (operate.Process, error) {
		p.Seen = now()
		if p.Since = before.Since; p.Since.IsZero() {
			p.Since = p.Seen
		}
		return p, nil
	})
	if err != nil {
		return err
	}
	lives, err := s.lives(ctx)
	if err != nil {
		return err
	}
	for _, other := range lives {
		replaced := other.Group == p.Group && other.Name == p.Name && other.Run != p.Run && !other.Alive()
		if replaced || other.Now.Sub(other.Seen) > keptProcess {
			if err := s.gone(ctx, other.Run); err != nil {
				return err
			}
		}
	}
	return nil
}

// Gone implements [operate.Operable].
func (s *Sink) Gone(ctx context.Context, p operate.Process) error {
	if err := s.gone(ctx, p.Run); err != nil {
		return fmt.Errorf("cassink: take away the sign of life of %s in group %q: %w", p.Name, p.Group, err)
	}
	return nil
}

func (s *Sink) gone(ctx context.Context, run string) error {
	stored, err := s.store.Get(ctx, s.keys.process(run))
	if err != nil || !stored.Live {
		return err
	}
	return s.store.Delete(ctx, stored)
}

func (s *Sink) lives(ctx context.Context) (found []operate.Process, err error) {
	items, err := s.list(ctx, s.keys.processes())
	if err != nil {
		return nil, err
	}
	for _, it := range items {
		if !it.Live {
			continue
		}
		p, err := processOf(it)
		if err != nil {
			return nil, err
		}
		found = append(found, p)
	}
	return found, nil
}

func processOf(it cas.Item) (p operate.Process, err error) {
	if err := json.Unmarshal(it.Value, &p); err != nil {
		return p, fmt.Errorf("item %q is no sign of life: %w", it.Key, err)
	}
	p.Now = now()
	return p, nil
}

// Processes implements [operate.Operator].
func (o *Operator) Processes(ctx context.Context, group string) ([]operate.Process, error) {
	lives, err := o.sink.lives(ctx)
	if err != nil {
		return nil, fmt.Errorf("cassink: list processes: %w", err)
	}
	var found []operate.Process
	for _, p := range lives {
		if group == "" || p.Group == group {
			found = append(found, p)
		}
	}
	operate.SortProcesses(found)
	return found, nil
}
