package batches

import (
	"cmp"
	"slices"
	"time"

	"github.com/epochfence/epochfence/outbox"
)

// This file decides which records are the cause of a batch that the server has refused, when they are tried
// again, and which later ones of their Keys wait. relay.go sends them.

// refusals are entries that their destination, a topic or a subject, refuses. Later entries of their Keys wait.
type refusals struct {
	of    map[int64]*refusal
	first map[string]int64 // by Key, the lowest
	width map[string]int   // by destination, how many to try at once: it doubles while the destination accepts them
}

type refusal struct {
	key, destination string
	until            time.Time // when to try again
	tries            int       // -1: an operator wants one now
}

// add adds row, or postpones it. Then others of its destination that are due wait, too, and are tried before it.
func (s *refusals) add(row outbox.Row, now time.Time, wait time.Duration) {
	if s.of == nil {
		s.of, s.first, s.width = map[int64]*refusal{}, map[string]int64{}, map[string]int{}
	}
	of, again := s.of[row.ID]
	if !again {
		of = &refusal{key: row.Key, destination: destinationOf(row)}
		s.of[row.ID] = of
		s.lead(row.ID, row.Key)
	}
	of.until, of.tries, s.width[of.destination] = now.Add(wait), max(of.tries, 0)+1, 1
	if again {
		s.postpone(of.destination, now, of.until)
	}
}

// postpone makes the entries of a destination that are due wait, unless an operator wants them now.
func (s *refusals) postpone(destination string, now, until time.Time) {
	for _, of := range s.of {
		if of.destination == destination && of.tries >= 0 && !of.until.After(now) {
			of.until = until
		}
	}
}

// lead makes id the first of its Key unless another is.
func (s *refusals) lead(id int64, key string) {
	if first, some := s.first[key]; key != "" && (!some || id < first) {
		s.first[key] = id
	}
}

// holds reports whether row is refused, or waits for an earlier one that is. At maxRefused it holds all but
// those before a refused one of their Key, which waits for them: see again.
func (s *refusals) holds(row outbox.Row) bool {
	_, refused := s.of[row.ID]
	first, some := s.first[row.Key]
	return refused || some && row.ID > first || !some && len(s.of) >= maxRefused
}

func (s *refusals) remove(id int64) {
	of := s.of[id]
	if of == nil {
		return
	}
	delete(s.of, id)
	if s.first[of.key] == id {
		delete(s.first, of.key)
		for id, other := range s.of {
			if other.key == of.key {
				s.lead(id, of.key)
			}
		}
	}
	for _, other := range s.of {
		if other.destination == of.destination {
			return
		}
	}
	delete(s.width, of.destination)
}

// waiting returns the entries that may be tried, each the first of its Key.
func (s *refusals) waiting() (ids []int64) {
	for id, of := range s.of {
		if of.key == "" || s.first[of.key] == id {
			ids = append(ids, id)
		}
	}
	return ids
}

// due returns entries whose wait is over. Of a destination, one is enough to see that it still refuses them.
func (s *refusals) due(now time.Time, limit int) (ids []int64) {
	all, taken := s.waiting(), map[string]int{}
	slices.SortFunc(all, func(a, b int64) int { return cmp.Or(cmp.Compare(s.of[a].tries, s.of[b].tries), cmp.Compare(a, b)) })
	for _, id := range all {
		if of := s.of[id]; len(ids) < limit && !of.until.After(now) && taken[of.destination] < s.width[of.destination] {
			taken[of.destination]++
			ids = append(ids, id)
		}
	}
	return ids
}

// blame returns the rows of a failed batch that are the cause: their destination refuses them. narrow is true if
// the cause is among several that the server refused together, and fewer must be sent to find it. For an
// error that is no record's fault, both are empty.
func blame(rows []outbox.Row, errs []error, of func(error) Refusal) (refused []int, narrow bool) {
	var together []int
	keys := map[string]bool{}
	for i, err := range errs {
		if err == nil {
			continue
		}
		switch of(err) {
		case Refused:
			if rows[i].Key == "" || !keys[rows[i].Key] { // the first of a Key: the others wait for it
				refused = append(refused, i)
			}
			keys[rows[i].Key] = true
		case RefusedTogether:
			together = append(together, i)
		}
	}
	if len(together) == 1 {
		return append(refused, together...), false
	}
	return refused, len(refused) == 0 && len(together) > 1
}
