package guard

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/form"
)

// This file decides, from an item's note alone, whether a message may change the item, and what
// the note remembers. It makes no requests.

// history has, in an item, which messages of a partition have changed it. All messages before From have
// been applied completely, and their changes are forgotten.
type history struct {
	Group   string       `json:"g"`
	Topic   string       `json:"t"`
	Number  int32        `json:"n"`
	Log     string       `json:"log,omitempty"`
	Era     epoch.Epoch  `json:"era,omitempty"`
	Act     string       `json:"act,omitempty"`
	Epoch   epoch.Epoch  `json:"epoch"`
	From    epoch.Offset `json:"from"`
	Changes []change     `json:"by,omitempty"` // by offset
	Replays []replayed   `json:"replays,omitempty"`
}

// replayed is a change by a dead letter, by its replay or before it has failed.
type replayed struct {
	ID      int64  `json:"id"`
	Outcome []byte `json:"out,omitempty"`
}

// change is a message's change of an item.
type change struct {
	At      epoch.Offset `json:"at"`
	Mark    epoch.Mark   `json:"mark"`
	Outcome []byte       `json:"out,omitempty"`
}

func (c change) isAt(other change) bool { return c.At == other.At }

// last returns the last offset that has changed the item, or the one before all.
func (s history) last() epoch.Offset {
	if len(s.Changes) == 0 {
		return s.From - 1
	}
	return s.Changes[len(s.Changes)-1].At
}

func (s history) isOf(p epoch.Partition) bool {
	return s.Group == p.Group && s.Topic == p.Topic && s.Number == p.Number
}

// note is the note of an item. Whoever changes the item replaces it, and loses fields that it does not
// know: what must not be lost is a new version.
type note struct {
	form.Version
	Absent    bool      `json:"absent,omitempty"` // the item was deleted, and its histories are remembered
	Histories []history `json:"by"`
}

func noteOf(item cas.Item) (n note, err error) {
	if len(item.Note) == 0 {
		return note{}, nil // nobody's, or written before
	}
	err = form.Parse(item.Note, &n)
	switch {
	case errors.Is(err, form.ErrNewer):
		return note{}, fmt.Errorf("%w: the note of the item: %w", epoch.ErrUnhealthy, err)
	case err != nil:
		return note{}, fmt.Errorf("the note of the item is not one of guard's: %w", err)
	}
	return n, nil
}

func (n note) of(p epoch.Partition) (history, bool) {
	i := slices.IndexFunc(n.Histories, func(s history) bool { return s.isOf(p) })
	if i < 0 {
		return history{}, false
	}
	return n.Histories[i], true
}

// with returns the note after changes by messages of a batch, or by the replay of a dead letter.
func (n note) with(first Stamp, changes []change, absent bool, dead []DeadLetter, keeps func(id int64) bool) note {
	now := history{
		Group: first.Partition.Group, Topic: first.Partition.Topic, Number: first.Partition.Number,
		Log: first.Log, Era: first.Era, Act: first.Act, Epoch: first.Epoch,
	}
	next := note{Absent: absent, Histories: slices.Clone(n.Histories)}
	i := slices.IndexFunc(next.Histories, func(was history) bool { return was.isOf(first.Partition) })
	if i >= 0 {
		was := next.Histories[i]
		now.Replays = was.Replays
		if was.Era == first.Era {
			now.From, now.Changes = was.From, was.Changes
		}
	}
	if first.Replay != 0 {
		now.Replays = append(slices.Clone(now.Replays), replayed{first.Replay, changes[0].Outcome})
	} else {
		now.From = max(now.From, first.Offset)
		now.Changes = slices.Concat(now.rest(), changes)
	}
	if i >= 0 {
		now.Replays = slices.Concat(now.Replays, next.Histories[i].failed(now, dead))
	}
	now.Replays = kept(now.Replays, keeps)
	if i >= 0 {
		next.Histories[i] = now
	} else {
		next.Histories = append(next.Histories, now)
	}
	return next
}

// kept leaves out the oldest replays beyond MaxReplays.
func kept(rs []replayed, keeps func(id int64) bool) []replayed {
	beyond := len(rs) - MaxReplays
	return slices.DeleteFunc(slices.Clone(rs), func(r replayed) bool {
		beyond--
		return beyond >= 0 && !keeps(r.ID)
	})
}

// without returns the length of the note without the history of a partition.
func (n note) without(p epoch.Partition) (int, error) {
	n.Histories = slices.DeleteFunc(slices.Clone(n.Histories), func(s history) bool { return s.isOf(p) })
	text, err := json.Marshal(n)
	return len(text), err
}

// rest returns the changes by messages that may be delivered again.
func (s history) rest() []change {
	i := slices.IndexFunc(s.Changes, func(c change) bool { return c.At >= s.From })
	if i < 0 {
		return nil
	}
	return s.Changes[i:]
}

// failed returns the changes of s by dead letters that are missing in now: as if they had been replayed.
func (s history) failed(now history, dead []DeadLetter) (rs []replayed) {
	for _, d := range dead {
		i := slices.IndexFunc(s.Changes, change{At: d.Offset}.isAt)
		kept := now.Era == s.Era && slices.ContainsFunc(now.Changes, change{At: d.Offset}.isAt)
		if d.Era == s.Era && i >= 0 && !kept && !slices.ContainsFunc(s.Replays, d.isReplayed) {
			rs = append(rs, replayed{d.ID, s.Changes[i].Outcome})
		}
	}
	return rs
}

func (d DeadLetter) isReplayed(r replayed) bool { return d.ID == r.ID }

// after compares a message with those of its partition that have changed an item. It returns the
// message's own change if it is one of these, and nil if the change is to be made.
//
// An operator's action raises the era, and is a claim, so all epochs under the new era are above all
// under the old one. That a lower era comes under an epoch that is not lower means that the fence has
// gone back behind the action.
func (s Stamp) after(was history, dead []DeadLetter) (*change, error) {
	switch {
	case s.Era > was.Era && s.Epoch > was.Epoch:
		return s.replayedIn(was, dead), nil
	case s.Era != was.Era && s.Epoch < was.Epoch:
		return nil, &StaleError{s.Partition, s.Epoch, was.Epoch}
	case s.Era != was.Era:
		return nil, ErrFenceLost
	case s.Log != was.Log:
		return nil, ErrOtherLog
	case s.Epoch < was.Epoch:
		return nil, &StaleError{s.Partition, s.Epoch, was.Epoch}
	case s.Act != was.Act && s.Act != "" && was.Act != "":
		return nil, ErrFenceLost
	case s.Replay != 0:
		return s.replayedIn(was, dead), nil
	case s.Offset > was.last():
		return nil, nil
	}
	i, found := slices.BinarySearchFunc(was.Changes, s.Offset, func(c change, at epoch.Offset) int { return cmp.Compare(c.At, at) })
	switch {
	case !found && s.Offset < was.From:
		return nil, &PassedError{was.From}
	case !found:
		return nil, ErrNew
	}
	if own := was.Changes[i]; s.Mark == epoch.NoMark || own.Mark == epoch.NoMark || s.Mark == own.Mark {
		return &own, nil
	}
	return nil, ErrTruncated
}

// replayedIn returns the change of a message that is replayed: by an earlier try, or from before it has
// failed.
func (s Stamp) replayedIn(was history, dead []DeadLetter) *change {
	if s.Replay == 0 {
		return nil
	}
	if i := slices.IndexFunc(was.Replays, DeadLetter{ID: s.Replay}.isReplayed); i >= 0 {
		return &change{At: s.Offset, Outcome: was.Replays[i].Outcome}
	}
	for _, d := range dead {
		if i := slices.IndexFunc(was.Changes, change{At: d.Offset}.isAt); d.ID == s.Replay && d.Era == was.Era && i >= 0 {
			return &was.Changes[i]
		}
	}
	return nil
}
