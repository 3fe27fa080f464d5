package consumer

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/epochfence/epochfence/epoch"
)

// This file derives the present state of each partition from the events, for readiness probes and
// status pages. It changes nothing.

// Status says what this process is doing in its group, for readiness probes and operators. It is
// derived from the events of a [Run]:
//
//	var status consumer.Status
//	err := consumer.Run(ctx, source, sink, handlers, consumer.Options{Observe: status.Observe})
//
// The zero Status has seen no events. Methods are safe for concurrent use.
type Status struct {
	mu         sync.Mutex
	joined     bool
	cause      error
	partitions map[epoch.Partition]PartitionStatus
	hung       []Overdue
}

// PartitionStatus is the status of a partition that this process holds.
type PartitionStatus struct {
	Partition epoch.Partition
	State     State
	Since     time.Time    // when it came into the State
	Epoch     epoch.Epoch  // of the last claim; 0 before the first
	Next      epoch.Offset // the position; -1 before the first claim
	Lag       int64        // messages to apply, as last reported by the source; -1 if not known. See [Behind]
	Newest    time.Time    // of the last message that was applied; zero before the first
	Reason    Reason       // why it is Halted
	Err       error        // why it is Halted; in StateAssigned, the Err of the [InDoubt] that ended the claim
	RetryAt   time.Time    // when a halted partition is tried again; zero if not by this process
}

// State is the state of a partition.
type State int

const (
	// StateAssigned means that the source has granted the partition, and this process has no claim,
	// or one in doubt.
	StateAssigned State = iota + 1

	// StateClaimed means that messages are applied as they arrive.
	StateClaimed

	// StateHalted means that the partition does not advance, because of Err. It is tried again
	// unless RetryAt is zero.
	StateHalted
)

func (s State) String() string {
	switch s {
	case StateAssigned:
		return "assigned"
	case StateClaimed:
		return "claimed"
	case StateHalted:
		return "halted"
	default:
		return fmt.Sprintf("State(%d)", int(s))
	}
}

// Observe is for [Options.Observe].
func (s *Status) Observe(e Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch e := e.(type) {
	case Joined:
		s.joined, s.cause = true, nil
	case Left:
		s.joined, s.cause = false, e.Cause
	case Granted:
		if s.partitions == nil {
			s.partitions = map[epoch.Partition]PartitionStatus{}
		}
		s.partitions[e.Partition] = PartitionStatus{Partition: e.Partition, State: StateAssigned, Since: time.Now(), Next: -1, Lag: -1}
	case Claimed:
		if e.Halted {
			s.change(e.Fence.Partition, func(p *PartitionStatus) { p.Epoch, p.Next = e.Fence.Epoch, e.Fence.Next })
			return
		}
		s.goesOn(e.Fence.Partition, e.Fence.Epoch, e.Fence.Next)
	case Advanced:
		s.goesOn(e.Partition, e.Epoch, e.To)
		s.change(e.Partition, func(p *PartitionStatus) {
			if e.Lag >= 0 {
				p.Lag = e.Lag
			}
			if !e.Newest.IsZero() {
				p.Newest = e.Newest
			}
		})
	case Behind:
		s.change(e.Partition, func(p *PartitionStatus) { p.Lag = e.Lag })
	case Resumed:
		s.goesOn(e.Partition, e.Epoch, e.Next)
	case Stale:
		s.unclaimed(e.Ours.Partition, nil)
	case WentBack:
		s.unclaimed(e.Was.Partition, nil)
	case InDoubt:
		s.unclaimed(e.Partition, e.Err)
	case Halted:
		s.change(e.Partition, func(p *PartitionStatus) {
			p.becomes(StateHalted)
			p.Reason, p.Err, p.Next, p.RetryAt = e.Reason, e.Err, e.Next, time.Time{}
			if e.RetryIn > 0 {
				p.RetryAt = time.Now().Add(e.RetryIn)
			}
		})
	case Overdue:
		s.hung = append(s.hung, e)
	case Returned:
		i := slices.IndexFunc(s.hung, func(o Overdue) bool {
			return o.Partition == e.Partition && o.Epoch == e.Epoch && o.Function == e.Function
		})
		if i >= 0 {
			s.hung = slices.Delete(s.hung, i, i+1)
		}
	case Drained:
		delete(s.partitions, e.Partition)
	case Lost:
		delete(s.partitions, e.Partition)
	}
}

// change changes the status of a partition that this process holds. Events of others are ignored:
// they may come after Lost.
func (s *Status) change(p epoch.Partition, how func(*PartitionStatus)) {
	if now, ok := s.partitions[p]; ok {
		how(&now)
		s.partitions[p] = now
	}
}

// goesOn records that nothing is wrong with a partition.
func (s *Status) goesOn(p epoch.Partition, e epoch.Epoch, next epoch.Offset) {
	s.change(p, func(now *PartitionStatus) {
		now.becomes(StateClaimed)
		now.Epoch, now.Next, now.Reason, now.Err, now.RetryAt = e, next, ReasonNone, nil, time.Time{}
	})
}

// becomes sets the state, and the time since when it lasts.
func (p *PartitionStatus) becomes(s State) {
	if p.State != s {
		p.State, p.Since = s, time.Now()
	}
}

// unclaimed records that a claim does not hold. A halted partition stays halted until it continues.
func (s *Status) unclaimed(p epoch.Partition, why error) {
	s.change(p, func(now *PartitionStatus) {
		if now.State == StateClaimed {
			now.becomes(StateAssigned)
			now.Err = why
		}
	})
}

// Joined reports whether this process is a member of the group, and the cause if it is not and the
// cause is known. There is no cause after a clean end.
func (s *Status) Joined() (joined bool, cause error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.joined, s.cause
}

// Partitions returns the partitions that this process holds, by group, topic and number.
func (s *Status) Partitions() []PartitionStatus {
	s.mu.Lock()
	defer s.mu.Unlock()
	var ps []PartitionStatus
	for _, p := range s.partitions {
		ps = append(ps, p)
	}
	slices.SortFunc(ps, func(a, b PartitionStatus) int { return a.Partition.Compare(b.Partition) })
	return ps
}

// Hung returns the calls that hang, by partition. A partition that was given up for its call is not in
// [Status.Partitions], unless the source has granted it again.
func (s *Status) Hung() []Overdue {
	s.mu.Lock()
	defer s.mu.Unlock()
	calls := slices.Clone(s.hung)
	slices.SortStableFunc(calls, func(a, b Overdue) int {
		return cmp.Or(a.Partition.Compare(b.Partition), cmp.Compare(a.Epoch, b.Epoch), cmp.Compare(a.Function, b.Function))
	})
	return calls
}

// Ready returns nil if this process is a member of the group, has claimed all partitions that it
// holds, none of them has halted, and no call of the user's functions hangs. Otherwise the error
// has a line for each reason, without partitions if this process is no member. Ready ignores lag and paused partitions. Use it to wait for a new
// process in a rolling deployment.
//
// Do not restart a process because of Ready: a restart resolves no halt. If too many calls hang,
// Run returns a [*HungError].
func (s *Status) Ready() error {
	var errs []error
	for _, o := range s.Hung() {
		errs = append(errs, fmt.Errorf("consumer: %w", &hungError{o}))
	}
	if joined, cause := s.Joined(); !joined {
		if cause != nil {
			return errors.Join(append(errs, fmt.Errorf("consumer: not a member of the group: %w", cause))...)
		}
		return errors.Join(append(errs, errors.New("consumer: not a member of the group"))...)
	}
	for _, p := range s.Partitions() {
		switch p.State {
		case StateAssigned:
			errs = append(errs, fmt.Errorf("consumer: %s is not claimed", p.Partition))
		case StateHalted:
			if errors.Is(p.Err, epoch.ErrPaused) {
				continue
			}
			errs = append(errs, fmt.Errorf("consumer: %s has halted at %d: %w", p.Partition, p.Next, p.Err))
		case StateClaimed:
		}
	}
	return errors.Join(errs...)
}
