package cassink

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/form"
	"github.com/epochfence/epochfence/operate"
)

// This file has what the owners of partitions are asked to do: replays that an operator wants, and those of deferred
// messages that are due. All of them are in one item, which owners poll. A replay is a transaction of its owner.

// requests is what owners of partitions poll: a number that changes with each act, and the replays that
// were requested.
type requests struct {
	form.Kept
	Acts    int64
	Replays []requested `json:",omitempty"`
	Retries []requested `json:",omitempty"` // of entries of the outbox

	// Deferred are the dead letters to replay once they are due. An earlier version leaves them alone.
	Deferred []due `json:",omitempty"`
}

// due is a dead letter that is replayed from a time of the clock of the process that has deferred it.
type due struct {
	requested
	At time.Time
}

// mostDeferred limits what all partitions have deferred, because it is in one item. A partition that would defer one
// more waits until others are replayed. It must not halt: a halted partition replays nothing.
const mostDeferred = 1000

var errDeferred = fmt.Errorf("%w: %d messages are deferred, which is all that a cassink keeps", epoch.ErrTransient, mostDeferred)

// requested names a dead letter, or an entry of the outbox.
type requested struct {
	Partition epoch.Partition
	ID        int64
}

// request adds a dead letter to what owners of partitions poll, or removes it.
func (s *Sink) request(ctx context.Context, r operate.Row, wanted bool) error {
	this := requested{r.Partition, r.ID}
	return replace(ctx, s.store, s.keys.requests(), func(all *requests) error {
		all.Replays = slices.DeleteFunc(all.Replays, func(r requested) bool { return r == this })
		all.Deferred = slices.DeleteFunc(all.Deferred, func(d due) bool { return d.requested == this })
		switch later := r.State == operate.StateDeferred; {
		case wanted && later && len(all.Deferred) >= mostDeferred:
			return errDeferred
		case wanted && later:
			all.Deferred = append(all.Deferred, due{this, now().Add(r.Delay())})
		case wanted:
			all.Replays = append(all.Replays, this)
		}
		return nil
	})
}

// Requests implements [operate.Ledger].
func (s *Sink) Requests(ctx context.Context, ps []epoch.Partition) (acts int64, letters []operate.Row, err error) {
	fail := func(err error) (int64, []operate.Row, error) {
		return 0, nil, fmt.Errorf("cassink: look for requests about %d partitions: %w", len(ps), err)
	}
	var all requests
	if _, err = read(ctx, s.store, s.keys.requests(), &all); err != nil {
		return fail(err)
	}
	slices.SortFunc(all.Replays, func(a, b requested) int { return cmp.Compare(a.ID, b.ID) })
	slices.SortFunc(all.Deferred, func(a, b due) int { return a.At.Compare(b.At) })
	listed := map[requested]due{}
	for _, d := range all.Deferred {
		if listed[d.requested] = d; !now().Before(d.At) {
			all.Replays = append(all.Replays, d.requested)
		}
	}
	of := map[epoch.Partition]int{}
	for _, r := range all.Replays {
		if !slices.Contains(ps, r.Partition) || of[r.Partition] == operate.ReplaysEach || len(letters) == operate.ReplaysMost {
			continue
		}
		at, err := s.letter(ctx, r.Partition, r.ID)
		if err == nil && at.letter.Pending {
			err = s.exists(ctx, at.letter)
		}
		if d, is := listed[r]; is {
			s.unlist(ctx, d, at, err)
		}
		if err == nil {
			at.letter, err = s.wholeLetter(ctx, at.letter)
		}
		if errors.Is(err, operate.ErrNoDeadLetter) || errors.Is(err, form.ErrUnreadable) {
			continue // an operator who looks at it is told why
		}
		if err != nil {
			return fail(err)
		}
		if at.letter.IsWanted(now()) {
			of[r.Partition]++
			letters = append(letters, at.letter.Row)
		}
	}
	slices.SortFunc(letters, func(a, b operate.Row) int { return cmp.Compare(a.ID, b.ID) })
	return all.Acts, letters, nil
}

// unlist takes from the list what nothing will come of, as reading it has shown. It would take room for ever.
func (s *Sink) unlist(ctx context.Context, d due, at letterItem, err error) {
	switch state := at.letter.State; {
	case errors.Is(err, errNever) && s.deleteLetter(ctx, at) == nil:
	case now().Sub(d.At) < time.Hour: // the read may lag
		return
	case errors.Is(err, operate.ErrNoDeadLetter) && !at.stored.Live: // whoever has deleted it failed to do this
	case err == nil && state != operate.StateDeferred && state != operate.StateRequested: // or to change it
	default:
		return
	}
	_ = replace(ctx, s.store, s.keys.requests(), func(all *requests) error {
		all.Deferred = slices.DeleteFunc(all.Deferred, func(now due) bool { return now.requested == d.requested && now.At.Equal(d.At) })
		return nil
	})
}

// CountDeferred counts what is listed as deferred of partitions that are ours, for [operate.Records].
func (s *Sink) CountDeferred(ctx context.Context, ours func(p epoch.Partition) bool) (int, error) {
	var all requests
	_, err := read(ctx, s.store, s.keys.requests(), &all)
	all.Deferred = slices.DeleteFunc(all.Deferred, func(d due) bool { return !ours(d.Partition) })
	return len(all.Deferred), err
}

// beginReplays marks the dead letters whose changes are about to be written, so that nobody discards one
// in the middle of that.
func (t *transaction) beginReplays(ctx context.Context) error {
	for i, at := range t.replays {
		at.letter.Under, at.letter.Pending = t.goal.Claim, false // it exists, or nobody would have been given it
		at, err := t.sink.swapLetter(ctx, at)
		if errors.Is(err, cas.ErrConflict) {
			return fmt.Errorf("replay dead letter %d of %s: %w", at.letter.ID, at.letter.Partition, operate.ErrRowChanged)
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

// finishReplay deletes the dead letters that the transaction has replayed, and records it, at best effort.
func (s *Sink) finishReplay(ctx context.Context, t *transaction) error {
	for _, at := range t.replays {
		err := s.deleteLetter(ctx, at)
		if errors.Is(err, cas.ErrConflict) {
			return fmt.Errorf("replay dead letter %d of %s: %w", at.letter.ID, at.letter.Partition, operate.ErrRowChanged)
		}
		if err != nil {
			return doubtful(err)
		}
		s.removed(at.letter)
		_ = s.request(ctx, at.letter.Row, false)
	}
	if len(t.entries) > 0 {
		_ = s.log(ctx, t.goal.Partition, t.entries)
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
