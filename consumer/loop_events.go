package consumer

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/epochfence/epochfence/epoch"
)

// This file lists everything that can happen to a loop, and has the line for each in a trace.
// loop.go, abandon.go, idle.go and replays.go handle the events; only the loop's goroutine does so.

// event is an input of a loop. After attached, events carry the tenancy and not the pending
// messages, because only the loop knows whether it still has them.
type event[TX any] interface {
	fmt.Stringer
	handle(l *loop[TX])
}

type (
	// attached hands a partition to the loop, which consumes its claim from now on.
	attached[TX any] struct {
		p    *pending[TX]
		from epoch.Offset
	}

	// detaching asks for a partition back. The loop answers on back, after a replay under way has
	// ended.
	detaching[TX any] struct {
		t    *tenancy[TX]
		back chan<- *pending[TX]
	}

	// offered hands over a batch. The answer comes on the tenancy's channel outcome.
	offered[TX any] struct {
		t *tenancy[TX]
		b Batch
	}

	// revoked asks the loop to begin no further transaction of the partition.
	revoked[TX any] struct{ t *tenancy[TX] }

	// ended reports the result of a transaction.
	ended[TX any] struct {
		t *transaction[TX]
		r result
	}

	// late reports a transaction that runs on long after its context has ended, and its stack.
	late[TX any] struct {
		t     *transaction[TX]
		stack string
	}

	// replayRequested reports that an operator wants a dead letter replayed.
	replayRequested[TX any] struct {
		t *tenancy[TX]
		r replay
	}

	// replayRecorded reports that the sink has recorded a failed replay, or could not.
	replayRecorded[TX any] struct{ r *replay }

	// fencesWanted asks for a look at all idle partitions: the sink may have gone back.
	fencesWanted[TX any] struct{}

	// fencesRead reports what a look at idle partitions has read.
	fencesRead[TX any] struct {
		of  []idler[TX]
		now epoch.Fences
		err error
	}

	// fencesDone follows the last fencesRead of a look.
	fencesDone[TX any] struct{}
)

func (e attached[TX]) handle(l *loop[TX])        { l.idle.add(e.p) }
func (e detaching[TX]) handle(l *loop[TX])       { l.detach(e.t, e.back) }
func (e offered[TX]) handle(l *loop[TX])         { l.offer(l.held[e.t], e.b) }
func (e revoked[TX]) handle(l *loop[TX])         { l.revoke(l.held[e.t]) }
func (e ended[TX]) handle(l *loop[TX])           { l.ended(e.t, e.r) }
func (e late[TX]) handle(l *loop[TX])            { l.abandon(e.t, e.stack) }
func (e replayRequested[TX]) handle(l *loop[TX]) { l.queueReplay(e.t, e.r) }
func (e replayRecorded[TX]) handle(l *loop[TX])  { l.replayRecorded(e.r) }
func (e fencesWanted[TX]) handle(l *loop[TX])    { l.idle.lookAtAll() }
func (e fencesRead[TX]) handle(l *loop[TX])      { l.idle.compare(e.of, e.now, e.err) }
func (e fencesDone[TX]) handle(l *loop[TX])      { l.idle.looking = false }

func (e attached[TX]) String() string {
	return fmt.Sprintf("%s attached at %d", e.p.partition, e.from)
}
func (e detaching[TX]) String() string { return fmt.Sprintf("%s detaching", e.t.partition) }
func (e offered[TX]) String() string {
	return fmt.Sprintf("%s offered %d messages, to %d", e.t.partition, len(e.b.Messages), e.b.Next)
}
func (e revoked[TX]) String() string { return fmt.Sprintf("%s revoked", e.t.partition) }
func (e ended[TX]) String() string   { return fmt.Sprintf("%s ended: %v", e.t, e.r.err) }
func (e late[TX]) String() string    { return fmt.Sprintf("%s is late", e.t) }
func (e replayRequested[TX]) String() string {
	return fmt.Sprintf("%s replay of dead letter %d requested", e.t.partition, e.r.ID)
}
func (e replayRecorded[TX]) String() string {
	return fmt.Sprintf("failed replay of dead letter %d recorded", e.r.ID)
}
func (fencesWanted[TX]) String() string { return "fences wanted" }
func (e fencesRead[TX]) String() string { return fmt.Sprintf("%d fences read: %v", len(e.of), e.err) }
func (fencesDone[TX]) String() string   { return "fences done" }

// LevelTrace is the level at which [Options.Logger] receives every event of the committers.
const LevelTrace = slog.LevelDebug - 4

// send returns once the loop has received e. It reports false if the loop is closed.
func (l *loop[TX]) send(e event[TX]) (taken bool) {
	select {
	case l.events <- e:
		return true
	case <-l.closed:
		return false
	}
}

// handle logs an event at LevelTrace and handles it. The trace holds all inputs of the loop in
// order, so a decision of the core can be followed from a log alone.
func (l *loop[TX]) handle(e event[TX]) {
	if l.run.Logger.Enabled(context.Background(), LevelTrace) {
		l.run.Logger.Log(context.Background(), LevelTrace, e.String(), "shard", l.shard)
	}
	e.handle(l)
}
