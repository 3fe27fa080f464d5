package pgsink

import (
	"fmt"
	"slices"

	"github.com/epochfence/epochfence/epoch"
)

// This file puts the advances of a transaction into the form and the order in which the SQL
// functions take them. The functions decide whether they are allowed.

// advances are the advances of one transaction in key order, as the SQL functions take them. If
// held, it is the one claim that the transaction needs without moving the position.
type advances struct {
	list           []epoch.Advance
	held           bool
	groups, topics []string
	numbers        []int32
	claims         []string
	froms, tos     []int64
	marks          []int64
	locks          []int64
}

func newAdvances(as []epoch.Advance) (*advances, error) {
	if len(as) == 0 {
		return nil, fmt.Errorf("pgsink: commit: no advance: it would be a transaction without a fence")
	}
	s := &advances{list: slices.Clone(as)}
	slices.SortStableFunc(s.list, func(a, b epoch.Advance) int { return a.Partition.Compare(b.Partition) })
	for i, a := range s.list {
		if a.To < a.From {
			return nil, fmt.Errorf("pgsink: commit: advance %s from %d back to %d", a.Partition, a.From, a.To)
		}
		if i > 0 && s.list[i-1].Partition == a.Partition {
			return nil, fmt.Errorf("pgsink: commit: %s is given twice", a.Partition)
		}
		if err := s.add(a.Partition, a.Claim); err != nil {
			return nil, err
		}
		s.froms = append(s.froms, int64(a.From))
		s.tos = append(s.tos, int64(a.To))
		s.marks = append(s.marks, int64(a.Mark))
	}
	return s, nil
}

// newHeld sets no positions, which tells the SQL functions that it is held.
func newHeld(h epoch.Hold) (*advances, error) {
	s := &advances{list: []epoch.Advance{{Partition: h.Partition, Claim: h.Claim}}, held: true}
	return s, s.add(h.Partition, h.Claim)
}

func (s *advances) add(p epoch.Partition, c epoch.ClaimID) error {
	if err := checkPartition(p); err != nil {
		return err
	}
	s.groups = append(s.groups, p.Group)
	s.topics = append(s.topics, p.Topic)
	s.numbers = append(s.numbers, p.Number)
	s.claims = append(s.claims, c.String())
	s.locks = append(s.locks, claimLock(c))
	return nil
}

func (s *advances) of(p epoch.Partition) (epoch.Advance, bool) {
	i, ok := slices.BinarySearchFunc(s.list, p, func(a epoch.Advance, p epoch.Partition) int { return a.Partition.Compare(p) })
	if !ok {
		return epoch.Advance{}, false
	}
	return s.list[i], true
}

func (s *advances) String() string {
	if len(s.list) == 1 {
		return s.list[0].Partition.String()
	}
	return fmt.Sprintf("%s and %d more", s.list[0].Partition, len(s.list)-1)
}
