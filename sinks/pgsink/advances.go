package pgsink

import (
	"fmt"
	"slices"

	"github.com/epochfence/epochfence/epoch"
)

// advances are those of one transaction, in key order, as the functions take
// them.
type advances struct {
	list           []epoch.Advance
	groups, topics []string
	numbers        []int32
	claims         []string
	froms, tos     []int64
	leaderEpochs   []int32
	locks          []int64
}

func newAdvances(as []epoch.Advance) (*advances, error) {
	if len(as) == 0 {
		return nil, fmt.Errorf("pgsink: commit: no advance: it would be a transaction without a fence")
	}
	s := &advances{list: slices.Clone(as)}
	slices.SortStableFunc(s.list, func(a, b epoch.Advance) int { return a.Compare(b.Partition) })
	for i, a := range s.list {
		if err := checkPartition(a.Partition); err != nil {
			return nil, err
		}
		if a.To < a.From {
			return nil, fmt.Errorf("pgsink: commit: advance %s from %d back to %d", a.Partition, a.From, a.To)
		}
		if i > 0 && s.list[i-1].Partition == a.Partition {
			return nil, fmt.Errorf("pgsink: commit: %s is given twice", a.Partition)
		}
		s.groups = append(s.groups, a.Group)
		s.topics = append(s.topics, a.Topic)
		s.numbers = append(s.numbers, a.Number)
		s.claims = append(s.claims, a.Claim.String())
		s.froms = append(s.froms, int64(a.From))
		s.tos = append(s.tos, int64(a.To))
		s.leaderEpochs = append(s.leaderEpochs, a.LeaderEpoch)
		s.locks = append(s.locks, claimLock(a.Claim))
	}
	return s, nil
}

// of returns the advance of a partition.
func (s *advances) of(p epoch.Partition) (epoch.Advance, bool) {
	i, ok := slices.BinarySearchFunc(s.list, p, func(a epoch.Advance, p epoch.Partition) int { return a.Compare(p) })
	if !ok {
		return epoch.Advance{}, false
	}
	return s.list[i], true
}

// groupOf returns the group in whose name a message is applied here.
func (s *advances) groupOf(m epoch.Message) (string, error) {
	group, found := "", false
	for _, a := range s.list {
		if a.Topic != m.Topic || a.Number != m.Partition {
			continue
		}
		if found {
			return "", fmt.Errorf("groups %q and %q both apply %s/%d in this transaction", group, a.Group, m.Topic, m.Partition)
		}
		group, found = a.Group, true
	}
	if !found {
		return "", fmt.Errorf("this transaction applies no messages of %s/%d", m.Topic, m.Partition)
	}
	return group, nil
}

func (s *advances) String() string {
	if len(s.list) == 1 {
		return s.list[0].Partition.String()
	}
	return fmt.Sprintf("%s and %d more", s.list[0].Partition, len(s.list)-1)
}
