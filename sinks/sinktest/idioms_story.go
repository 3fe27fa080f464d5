package sinktest

import (
	"fmt"
	"sync"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
)

type story struct {
	play  *play
	size  epoch.Offset // messages in each of the two partitions
	err   error        // of Run
	again bool         // it is not the first process

	mu       sync.Mutex
	next     map[int32]epoch.Offset
	claimed  int
	claims   chan struct{} // closed when all partitions are claimed
	halts    map[int32]error
	attempts []consumer.Retried // attempts that counted
	alone    bool               // the guilty message was applied without another
	doubts   int
	loose    int  // retries that did not count
	passing  bool // a partition has halted, for a reason that passes
	called1  bool
	shared   bool // the first transaction that called the guilty message had both partitions

	over   chan struct{}
	isOver bool
	wrongs []string
}

// More than these mean that a consumer goes in circles.
const (
	manyDoubts = 40
	manyLoose  = 200
)

func (s *story) wrong(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wrongLocked(format, args...)
}

func (s *story) wrongLocked(format string, args ...any) {
	s.wrongs = append(s.wrongs, fmt.Sprintf(format, args...))
}

func (s *story) called() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.called1 = true
}

func (s *story) observe(e consumer.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch e := e.(type) {
	case consumer.Claimed:
		n := e.Fence.Partition.Number
		if _, again := s.next[n]; !again {
			if s.claimed++; s.claimed == 3 {
				close(s.claims)
			}
		}
		s.next[n] = e.Fence.Next
	case consumer.Advanced:
		n := e.Partition.Number
		s.play.ended(e.Partition)
		s.next[n] = e.To
		if n == guiltyOne && e.From <= s.play.guilty && s.play.guilty < e.To {
			s.alone = e.Messages == 1
		}
	case consumer.Transacted:
		if s.called1 {
			s.called1 = false
			s.shared = s.shared || e.Partitions == 2
		}
	case consumer.Retried:
		s.play.ended(e.Partition)
		if e.Attempt > 0 {
			s.attempts = append(s.attempts, e)
		} else if s.loose++; s.loose == manyLoose {
			s.wrongLocked("it is tried again and again, and never blamed: %v", e.Err)
			s.end()
		}
	case consumer.InDoubt:
		if s.doubts++; s.doubts == manyDoubts {
			s.wrongLocked("it is in doubt again and again: %v", e.Err)
			s.end()
		}
	case consumer.Halted:
		s.play.ended(e.Partition)
		s.halts[e.Partition.Number] = e.Err
		s.passing = s.passing || !e.Reason.NeedsOperator()
		if e.Partition.Number != guiltyOne {
			s.wrongLocked("%s, which has nothing to do with it, halts: %v", e.Partition, e.Err)
			s.end()
		}
	case consumer.NotClaimed:
		if s.loose++; s.loose == manyLoose {
			s.wrongLocked("it cannot be claimed: %v", e.Err)
			s.end()
		}
	case consumer.Replayed:
		if e.Final {
			return
		}
		if s.loose++; s.loose == manyLoose {
			s.wrongLocked("a replay is tried again and again: %v", e.Err)
			s.end()
		}
	}
	if s.next[innocent] == s.size && s.next[gate] == 1 && (s.next[guiltyOne] == s.size || s.halts[guiltyOne] != nil) {
		s.end()
	}
}

func (s *story) end() {
	if !s.isOver {
		s.isOver = true
		close(s.over)
	}
}
