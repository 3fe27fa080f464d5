package consumer

import (
	"bytes"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/epochfence/epochfence/consumer/internal/hung"
	"github.com/epochfence/epochfence/epoch"
)

var origin5 = epoch.Origin{Partition: epoch.Partition{Group: "billing", Topic: "orders", Number: 5}, Log: "log", Source: "source"}

// partitionAt returns a partition at a position, of which message 5 has failed twice.
func partitionAt(next epoch.Offset, out *bytes.Buffer) *partition {
	p := &partition{
		run: &runner{Options: Options{MaxBatch: 3}, hung: newHangs(1)}, id: origin5.Partition,
		logger: slog.New(slog.NewTextHandler(out, nil)), bisect: newBisection(time.Second, time.Second),
	}
	p.fence = epoch.Fence{Origin: origin5, Epoch: 1, Next: next}
	p.bisect.first, p.bisect.attempts = 5, 2
	return p
}

func TestABatchIsAcceptedFromThePositionOn(t *testing.T) {
	for name, c := range map[string]struct {
		batch          []epoch.Offset
		next           epoch.Offset
		applied, begun bool
		fails          bool
		says           bool
		attempts       int // that still count
	}{
		"the message at the position":                    {batch: []epoch.Offset{5}, next: 6, attempts: 2},
		"the group's first message is above it":          {batch: []epoch.Offset{7}, next: 8, says: true},
		"the first message after a takeover is above it": {batch: []epoch.Offset{7}, next: 8, applied: true},
		"a later message is above it":                    {batch: []epoch.Offset{7}, next: 8, begun: true},
		"there is no message up to offset 9":             {next: 9},
		"a message is below it":                          {batch: []epoch.Offset{4}, next: 6, fails: true, attempts: 2},
		"a message comes twice":                          {batch: []epoch.Offset{5, 5}, next: 6, fails: true, attempts: 2},
		"the batch ends before its message":              {batch: []epoch.Offset{5}, next: 5, fails: true, attempts: 2},
		"the batch ends below it":                        {next: 4, fails: true, attempts: 2},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			p := partitionAt(5, &out)
			p.fence.Applied, p.begun = c.applied, c.begun
			b := Batch{Next: c.next}
			for _, o := range c.batch {
				b.Messages = append(b.Messages, Message{Partition: origin5.Partition, Offset: o})
			}
			err := p.accept(b)
			if errors.Is(err, ErrOutOfOrder) != c.fails || err != nil && !c.fails {
				t.Errorf("%v", err)
			}
			if accepted := p.batch.Next == c.next; accepted == c.fails {
				t.Errorf("it has %+v", p.batch)
			}
			if want := c.begun || !c.fails && len(c.batch) > 0; p.begun != want {
				t.Errorf("it has begun: %v", p.begun)
			}
			if said := out.Len() > 0; said != c.says {
				t.Errorf("it says %q", out.String())
			}
			if p.bisect.attempts != c.attempts {
				t.Errorf("%d attempts of message 5 count; want %d", p.bisect.attempts, c.attempts)
			}
		})
	}
}

func TestTheAttemptsOfAMessageThatIsGoneDoNotCount(t *testing.T) {
	for _, at := range []epoch.Offset{0, 1} { // also of the first ones of a log
		p := partitionAt(at, new(bytes.Buffer))
		p.bisect.first = at
		if err := p.accept(Batch{Next: at + 1}); err != nil || p.bisect.attempts != 0 {
			t.Errorf("%d attempts of the message at offset %d count, %v", p.bisect.attempts, at, err)
		}
	}
}

func TestATransactionTakesMaxBatchUnlessAFailedBatchIsNarrowed(t *testing.T) {
	p := partitionAt(5, new(bytes.Buffer))
	p.batch = Batch{Messages: make([]Message, 9), Next: 14}
	if n := p.size(); n != 3 {
		t.Errorf("it takes %d of 9", n)
	}
	p.bisect.suspects, p.bisect.try = 9, 2
	if n := p.size(); n != 2 {
		t.Errorf("it takes %d of 9 suspects", n)
	}
	p.bisect.try = 8
	if n := p.size(); n != 3 {
		t.Errorf("it takes %d of 9, 8 of which may be tried", n)
	}
	p.batch.Messages = p.batch.Messages[:1]
	if n := p.size(); n != 1 {
		t.Errorf("it takes %d of the one that is there", n)
	}
}

type fixedTenure struct {
	Tenure
	origin epoch.Origin
}

func (t fixedTenure) Origin() epoch.Origin { return t.origin }
func (t fixedTenure) Term() time.Duration  { return time.Minute }

func TestAPartitionWhoseMessageHasHungStartsWithThatKnown(t *testing.T) {
	run := &runner{Options: Options{Logger: slog.New(slog.DiscardHandler)}, hung: newHangs(1), shards: oneShard{}}
	run.committers = []*committer{newCommitter(t.Context(), run, 0)}
	run.suspects.Blame(origin5.Partition, hung.Message{First: 5, Last: 5})
	of := func(o epoch.Origin) *partition {
		return run.newPartition(t.Context(), fixedTenure{origin: o}, time.Second)
	}
	if !of(origin5).hung {
		t.Error("what has hung is forgotten")
	}
	other := origin5
	other.Partition.Number++
	if of(other).hung {
		t.Error("another partition's message has hung")
	}
}
