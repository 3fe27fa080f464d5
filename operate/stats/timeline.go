package stats

import (
	"fmt"
	"time"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/operate"
)

// This file keeps the latest events that an operator wants to see, without those that happen with
// each transaction.

// Moment is an event that an operator may want to read about later.
type Moment struct {
	At        time.Time
	Kind      MomentKind
	Partition epoch.Partition // zero for Joined and Left, and for Suspected and SuspicionWrong
	Epoch     epoch.Epoch     // of our claim; 0 without one
	Next      epoch.Offset    // our position; -1 if there is none, 0 for background work

	// OtherEpoch is the epoch of the claim that we replaced, or of the claim that holds the
	// partition now, or the highest epoch that the receiver knows. OtherOwner is the owner of that
	// claim.
	OtherEpoch epoch.Epoch
	OtherOwner string

	Reason consumer.Reason
	Text   string // details: an error, cut to 500 characters
}

// MomentKind is the kind of a moment.
type MomentKind int

// The kinds of moments.
const (
	Joined          MomentKind = iota // this process is a member of its group
	Left                              // it is not any more
	Takeover                          // we claimed a partition that had another owner; on Kafka that may have been this process as an earlier member
	Refused                           // the fence refused us: the partition belongs to a later claim
	ReceiverRefused                   // a receiver refused an entry of the outbox: it knows a higher epoch
	Halted                            // a partition has halted; not repeated until it continues, or halts for another reason
	GoesOn                            // a halted partition continues
	Lost                              // a partition was taken away, or given up because a call hangs
	WentBack                          // the sink has lost commits
	Overdue                           // a handler does not return
	Suspected                         // another process seemed to have died, and this one had it removed from the group
	SuspicionWrong                    // it lives
)

func (k MomentKind) String() string {
	names := [...]string{"joined", "left", "takeover", "refused", "receiver refused", "halted", "continues", "lost", "went back", "overdue", "suspected", "suspicion was wrong"}
	if k < 0 || int(k) >= len(names) {
		return fmt.Sprintf("MomentKind(%d)", int(k))
	}
	return names[k]
}

const (
	maxMoments = 1000

	maxText = 500
)

// timeline holds the last moments. The caller holds the lock.
type timeline struct {
	moments []Moment // a ring buffer once it is full
	next    int      // the index of the next moment in a full ring buffer

	// halted are the partitions whose last Halted or GoesOn moment is Halted, and why they halted.
	halted map[epoch.Partition]consumer.Reason
}

func (t *timeline) add(m Moment) {
	if len(t.moments) < maxMoments {
		t.moments = append(t.moments, m)
		return
	}
	t.moments[t.next] = m
	t.next = (t.next + 1) % maxMoments
}

func (t *timeline) list() []Moment {
	ms := make([]Moment, 0, len(t.moments))
	for i := range t.moments {
		ms = append(ms, t.moments[(t.next+len(t.moments)-1-i)%len(t.moments)])
	}
	return ms
}

func (t *timeline) note(now time.Time, e consumer.Event) {
	switch e := e.(type) {
	case consumer.Joined:
		t.add(Moment{At: now, Kind: Joined, Next: -1})
	case consumer.Left:
		t.add(Moment{At: now, Kind: Left, Next: -1, Text: text(e.Cause)})
	case consumer.Claimed:
		if !e.Halted {
			t.goesOn(now, e.Fence.Partition, e.Fence.Epoch, e.Fence.Next)
		}
		if e.Seen.Epoch > 0 && e.Seen.Owner != e.Fence.Owner && operate.OperatorOf(e.Seen.Owner) == "" {
			t.add(Moment{
				At: now, Kind: Takeover, Partition: e.Fence.Partition, Epoch: e.Fence.Epoch, Next: e.Fence.Next,
				OtherEpoch: e.Seen.Epoch, OtherOwner: e.Seen.Owner,
			})
		}
	case consumer.Advanced:
		t.goesOn(now, e.Partition, e.Epoch, e.To)
	case consumer.Resumed:
		t.goesOn(now, e.Partition, e.Epoch, e.Next)
	case consumer.Stale:
		t.add(Moment{
			At: now, Kind: Refused, Partition: e.Ours.Partition, Epoch: e.Ours.Epoch, Next: e.Ours.Next,
			OtherEpoch: e.Held.Epoch, OtherOwner: e.Held.Owner, Reason: consumer.ReasonStale,
		})
	case consumer.WentBack:
		t.add(Moment{
			At: now, Kind: WentBack, Partition: e.Was.Partition, Epoch: e.Was.Epoch, Next: e.Was.Next,
			OtherEpoch: e.Now.Epoch, OtherOwner: e.Now.Owner, Text: fmt.Sprintf("the fence is at %d now", e.Now.Next),
		})
	case consumer.Halted:
		if why, known := t.halted[e.Partition]; known && why == e.Reason {
			return
		}
		if t.halted == nil {
			t.halted = map[epoch.Partition]consumer.Reason{}
		}
		t.halted[e.Partition] = e.Reason
		t.add(Moment{At: now, Kind: Halted, Partition: e.Partition, Epoch: e.Epoch, Next: e.Next, Reason: e.Reason, Text: text(e.Err)})
	case consumer.Lost:
		delete(t.halted, e.Partition)
		t.add(Moment{At: now, Kind: Lost, Partition: e.Partition, Epoch: e.Epoch, Next: e.Next, Reason: e.Reason, Text: text(e.Cause)})
	case consumer.Drained:
		delete(t.halted, e.Partition)
	case consumer.Suspected:
		t.add(Moment{At: now, Kind: Suspected, Next: -1, OtherOwner: e.Name, Text: e.String()})
	case consumer.SuspicionWrong:
		t.add(Moment{At: now, Kind: SuspicionWrong, Next: -1, OtherOwner: e.Suspected.Name, Text: e.String()})
	case consumer.Overdue:
		t.add(Moment{At: now, Kind: Overdue, Partition: e.Partition, Epoch: e.Epoch, Next: e.From, Text: e.String()})
	}
}

func (t *timeline) goesOn(now time.Time, p epoch.Partition, e epoch.Epoch, next epoch.Offset) {
	if len(t.halted) == 0 {
		return
	}
	if why, known := t.halted[p]; known {
		delete(t.halted, p)
		t.add(Moment{At: now, Kind: GoesOn, Partition: p, Epoch: e, Next: next, Reason: why})
	}
}

func text(err error) string {
	if err == nil {
		return ""
	}
	s := err.Error()
	if runes := []rune(s); len(runes) > maxText {
		return string(runes[:maxText]) + "…"
	}
	return s
}
