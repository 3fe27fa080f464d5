package sinktest

import (
	"time"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/operate"
)

var operated = []history{
	{"a live owner is fenced by an act, claims again, and continues from where it was told", "R1 R6 R8", ownerIsTold},
	{"an act takes the next epoch, keeps the lease's generation, and names the person", "R1", actIsAClaim},
	{"an act compares what was seen: the epoch and the claim, and the position where it sets one", "R2", actCompares},
	{"of many acts from one reading, one is done", "R2", oneOfManyActs},
	{"a paused partition takes no claim, says who has paused it and why, and continues once it is resumed", "R2", pausing},
	{"a fence that was never claimed takes a position, and nothing else", "R8", unclaimedActs},
	{"what only says that a partition is in another database is left alone", "R1", redirectRowsAreLeftAlone},
	{"another log and another lease source are accepted with a position", "R2 R10", rebasing},
	{"a run is requested of a job, at its position and with a mark, and of no other partition", "R2", runsAreRequested},
	{"acts at random: every answer is as epoch.Fences says", "R1 R2", actsAgainstModel},
	{"each claim and each act is in the audit log, and nothing that was refused or committed", "R1", decisionsAreLogged},
	{"what consumers record is in the audit log, and they record no acts", "R1", recording},
	{"what hangs is read by the next owner: the newest first, and nothing from before an operator let the partition continue", "R12", hanging},
	{"of what hangs again and again, the newest is read", "R12", hangingOften},
	{"a process is listed from its first sign of life to its end, with the database's time", "L5", signsOfLife},
	{"a process whose signs stop is not alive, and is listed until another one is in its place", "L5", signsThatStop},
	{"a sign of life fails for no name", "L5", signsOfOddProcesses},
	{"the audit log is read by partition, claim, kind and page", "R1", readingTheLog},
	{"fences are listed by group and topic, with their dead letters", "R1", listing},
	{"a dead letter is shown whole, and listed without its content", "R1", showingDeadLetters},
	{"a replay that is requested takes the dead letter away with its effects, or neither", "R1 R6", replaying},
	{"a replay that was withdrawn, carried out or discarded meanwhile is not committed", "R1", replayedOnce},
	{"a replay that fails stays a dead letter, with the reason", "R1", replayFails},
	{"of the text of an error, as much is kept as every store can have", "R12", longTexts},
	{"what is done to a dead letter compares its requests", "R2", deadLetterCompares},
	{"a number changes with each act, for whoever looks after fences", "R5", actsAreCounted},
}

// operatedWhole are of sinks that commit all effects of a transaction with its positions.
var operatedWhole = []history{
	{"acts beside claimers and committers: under each claim exactly the messages of its span are applied, as the audit log tells it", "R1 R2 R5", actsRaced},
}

type person struct {
	w  *world
	op operate.Operator
}

func (w *world) person() *person {
	w.Helper()
	return &person{w, w.db.Operator(w)}
}

func (h *person) sees(p epoch.Partition) epoch.Fence {
	h.w.Helper()
	found, err := h.op.Partition(h.w.ctx, p)
	if err != nil {
		h.w.Fatalf("read %s: %v", p, err)
	}
	return found.Fence
}

func act(kind operate.ActKind, seen epoch.Fence) operate.Act {
	return operate.NewAct(kind, seen, "anna", "for the test")
}

func to(kind operate.ActKind, seen epoch.Fence, at epoch.Offset) operate.Act {
	a := act(kind, seen)
	a.To = &epoch.Position{Offset: at, Mark: epoch.NoMark}
	return a
}

// does takes action a, which must succeed and follow the protocol.
func (h *person) does(a operate.Act) epoch.Fence {
	h.w.Helper()
	before := h.sees(a.Partition)
	f, err := h.op.Act(h.w.ctx, a)
	if err != nil {
		h.w.Fatalf("%s %s: %v", a.Kind, a.Partition, err)
	}
	want, err := a.Apply(before)
	if err != nil {
		h.w.Fatalf("the history itself is wrong: %v", err)
	}
	if timeless(f) != timeless(want) {
		h.w.Fatalf("%s %s: the fence is\n%+v, want\n%+v", a.Kind, a.Partition, f, want)
	}
	if now := h.sees(a.Partition); now != f {
		h.w.Fatalf("%s %s returned\n%+v, and the fence is\n%+v", a.Kind, a.Partition, f, now)
	}
	return f
}

// timeless returns a fence without the time that its database has set.
func timeless(f epoch.Fence) epoch.Fence {
	f.Pause.Since = time.Time{}
	return f
}
