package guard

import (
	"cmp"
	"slices"

	"github.com/epochfence/epochfence/epoch"
)

// This file decides which items of a batch are written together, and which after one another.
// batch.go writes them.

// step is a change to be written.
type step struct {
	item   *item
	offset epoch.Offset // of the message
	knows  []*item      // those whose outcomes the message got before
	tells  bool         // it has an outcome
}

// round is what is written at a time: items, and the last message whose change of the item is written.
type round map[*item]epoch.Offset

// rounds returns the order in which changes are written. An outcome that is not written may become another
// one when the message is delivered again, because others were faster or this process has died. The message
// may change other items then. An item that has a later message refuses that, and a change that was made by
// the first outcome would stay. So an outcome is written before what its message has changed after it,
// and before what later messages have changed.
func rounds(steps []step) (found []round) {
	slices.SortStableFunc(steps, func(a, b step) int { return cmp.Compare(a.offset, b.offset) })
	of, last := map[*item]int{}, map[*item]int{} // the round of the last step of an item, and which it is
	in := make([]int, len(steps))
	var told latest // by the messages before
	for begin, end := 0, 0; begin < len(steps); begin = end {
		for ; end < len(steps) && steps[end].offset == steps[begin].offset; end++ {
			s := steps[end]
			n := max(of[s.item], told.besides(s.item))
			for _, before := range s.knows {
				n = max(n, of[before]+1)
			}
			of[s.item], last[s.item], in[end] = n, end, n
		}
		for i := begin; i < end; i++ {
			if steps[i].tells {
				told.add(steps[i].item, in[i]+1)
			}
		}
	}
	for i, s := range steps {
		if !s.tells && last[s.item] != i {
			continue // it is written with a later one
		}
		for len(found) <= in[i] {
			found = append(found, round{})
		}
		found[in[i]][s.item] = s.offset
	}
	return found
}

// latest has the round that is the first after all outcomes of messages, and after those of other items than one.
type latest struct {
	item         *item // which has the last outcome
	round, other int
}

func (l latest) besides(it *item) int {
	if it == l.item {
		return l.other
	}
	return l.round
}

func (l *latest) add(it *item, round int) {
	switch {
	case it == l.item:
		l.round = max(l.round, round)
	case round > l.round:
		l.item, l.round, l.other = it, round, l.round
	default:
		l.other = max(l.other, round)
	}
}
