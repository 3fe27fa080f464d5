package batches_test

import (
	"cmp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/epochfence/epochfence/internal/servers/natstest"
)

// recreate deletes the stream and creates it again, empty.
func (r *natsRig) recreate() {
	r.Helper()
	s, err := r.js.Stream(r.Context(), r.o.Stream)
	if err == nil {
		err = r.js.DeleteStream(r.Context(), r.o.Stream)
	}
	if err == nil {
		_, err = r.js.CreateStream(r.Context(), s.CachedInfo().Config)
	}
	if err != nil {
		r.Fatal(err)
	}
}

// wantNew checks that the stream has each of these, once, and in order.
func (r *natsRig) wantNew(want map[string][]int) {
	r.Helper()
	found := r.found()
	for key := range r.added {
		if !slices.Equal(found[key], want[key]) {
			r.Errorf("key %s: the stream has %v, want %v", key, found[key], want[key])
		}
	}
}

func TestIntoAStreamThatWasRecreatedWhileNothingWaitedNewMessagesGo(t *testing.T) {
	r := newNATSRig(t, natstest.Start(t).URL())
	r.add("a", "b", "a", "b")
	run := r.takeOver(&process{})
	r.awaitEmpty()
	for _, same := range []bool{true, false} {
		r.recreate()
		if !same {
			r.stop(run)
			r.takeOver(&process{})
		}
		r.mu.Lock()
		n := r.n
		r.mu.Unlock()
		r.add("a", "b", "a")
		r.awaitEmpty()
		r.wantNew(map[string][]int{"a": {n, n + 2}, "b": {n + 1}})
	}
}

// Nobody but the operator knows whether the old stream had the batch.
func TestABatchOfAStreamThatWasRecreatedIsADoubt(t *testing.T) {
	for name, after := range map[string]int{"": 0, "before its batch is assigned": natsPosition, "before its commit": natsMessage, "before its end is known": natsCommit} {
		t.Run("recreated "+cmp.Or(name, "under an open session"), func(t *testing.T) {
			t.Parallel()
			r := newNATSRig(t, natstest.Start(t).URL())
			var log lines
			r.o.Logger, r.o.RetryMax = log.logger(), time.Hour // it does not become idle
			r.add("a", "b")
			run := r.takeOver(&process{})
			r.awaitSent()
			if name != "" {
				r.stop(run)
				r.add("a", "c", "a")
				run = r.takeOver(killedAfter(after))
				r.await("its end", run.of.killed)
				r.stop(run)
				r.recreate()
				r.takeOver(&process{})
			} else {
				r.recreate()
				r.add("a", "c", "a")
			}
			r.await("a doubt", func() bool {
				return strings.Contains(log.String(), "in doubt") && strings.Contains(log.String(), "discard entry "+itoa(r.batch().ID))
			})
			r.wantNew(nil)
			r.stop(r.all()[len(r.all())-1])
			r.o.RetryMax = 50 * time.Millisecond
			r.db.Discard(r.batch().ID) // the old stream is no more, and the operator wants what is left in the new one
			r.takeOver(&process{})
			r.awaitEmpty()
			r.wantNew(map[string][]int{"a": {2, 4}, "c": {3}})
		})
	}
}

// A position is found by the creation of its stream, which stays as it is when the configuration changes.
func TestAStreamWhoseConfigurationChangesKeepsItsPositions(t *testing.T) {
	r := newNATSRig(t, natstest.Start(t).URL())
	var log lines
	r.o.Logger, r.o.RetryMax, r.o.RequestTimeout = log.logger(), time.Hour, patience // the last batch stays assigned; a stall is no incident
	r.add("a", "b")
	run := r.takeOver(&process{})
	r.awaitSent()
	r.stop(run)
	s, err := r.js.Stream(t.Context(), r.o.Stream)
	if err == nil {
		c := s.CachedInfo().Config
		c.Description, c.MaxMsgs = "changed", 1_000_000
		_, err = r.js.UpdateStream(t.Context(), c)
	}
	if err != nil {
		t.Fatal(err)
	}
	r.add("a", "b", "a")
	r.takeOver(&process{})
	r.awaitSent()
	r.wantAll()
	if text := log.String(); text != "" {
		t.Errorf("the log: %s", text)
	}
}

// In the new stream a position has the sequence that the zombie's batch expects of one.
func TestAZombieOfAStreamThatWasRecreatedStoresNothing(t *testing.T) {
	r := newNATSRig(t, natstest.Start(t).URL())
	var log, refused lines
	r.o.Logger, r.o.RetryMax, r.o.RequestTimeout = refused.logger(), time.Hour, patience
	r.add("a", "b", "a")
	frozen := freezeAt(natsMessage, 3) // of the second batch
	zombie := r.takeOver(&process{at: frozen.at})
	r.awaitSent()
	r.add("a", "c", "a")
	frozen.await(r.rig)
	expects := r.lastPosition()
	r.recreate()
	r.o.Logger = log.logger()
	second := r.takeOver(&process{})
	r.await("a doubt", func() bool { return strings.Contains(log.String(), "in doubt") })
	r.stop(second)
	r.db.Discard(r.batch().ID)
	third := r.takeOver(&process{})
	r.awaitSent()
	if got := r.lastPosition(); got != expects {
		t.Fatalf("the last position is number %d of the new stream, want %d as in the old one", got, expects)
	}
	frozen.thaw()
	r.await("the refusal of its batch, or its end", func() bool {
		select {
		case <-zombie.done:
			return true
		default:
			return strings.Contains(refused.String(), "10071")
		}
	})
	r.wantNew(map[string][]int{"a": {3, 5}, "c": {4}})
	r.add("b")
	r.awaitSent()
	r.wantNew(map[string][]int{"a": {3, 5}, "b": {6}, "c": {4}})
	r.stop(third)
}

// A cluster restores a backup as a new stream. What its positions say is known, and so is that they are old.
func TestThePositionsOfAStreamThatWasRestoredAreFound(t *testing.T) {
	r := newNATSRig(t, natstest.Start(t).URL())
	var log lines
	r.o.Logger, r.o.RetryMax, r.o.RequestTimeout = log.logger(), time.Hour, patience // it does not become idle
	r.add("a", "b", "a")
	first := r.takeOver(&process{})
	r.awaitSent()
	r.stop(first)
	r.restore(r.lastPosition())
	r.add("a", "b", "a", "a", "c", "a")
	frozen := freezeAt(natsMessage, 3) // of the second batch
	zombie := r.takeOver(&process{at: frozen.at})
	frozen.await(r.rig)
	backup := r.lastPosition()
	r.o.RetryMax = 50 * time.Millisecond
	second := r.takeOver(&process{})
	r.awaitEmpty()
	r.wantAll()
	r.stop(second)

	r.restore(backup)
	r.add("b")
	r.takeOver(&process{})
	r.await("a doubt", func() bool { return strings.Contains(log.String(), "in doubt") })
	frozen.thaw()
	r.ends(zombie)
	r.wantNew(map[string][]int{"a": {0, 2, 3, 5}, "b": {1, 4}})
}

// restore creates the stream again with its messages up to the last.
func (r *natsRig) restore(last uint64) {
	r.Helper()
	s, err := r.js.Stream(r.Context(), r.o.Stream)
	if err != nil {
		r.Fatal(err)
	}
	var all []*nats.Msg
	for sequence := uint64(1); sequence <= last; sequence++ {
		m, err := s.GetMsg(r.Context(), sequence)
		if err != nil {
			r.Fatal(err)
		}
		all = append(all, &nats.Msg{Subject: m.Subject, Data: m.Data})
	}
	r.recreate()
	for _, m := range all {
		if _, err := r.js.PublishMsg(r.Context(), m); err != nil {
			r.Fatal(err)
		}
	}
}

// lastPosition returns the sequence of the partition's position.
func (r *natsRig) lastPosition() uint64 {
	r.Helper()
	s, err := r.js.Stream(r.Context(), r.o.Stream)
	if err != nil {
		r.Fatal(err)
	}
	m, err := s.GetLastMsgForSubject(r.Context(), r.o.Positions+".>")
	if err != nil {
		r.Fatal(err)
	}
	return m.Sequence
}

// killedAfter is a process that dies at what follows a step.
func killedAfter(step int) *process {
	var came atomic.Bool
	p := &process{}
	p.at = func(at int) {
		if came.Load() && at != step {
			p.kill()
		}
		if at == step {
			came.Store(true)
		}
	}
	return p
}
