package batches_test

import (
	"crypto/rand"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/epochfence/epochfence/internal/servers/natstest"
)

// The histories of this file lose a position, or commits of the database. None stores a message twice.

func TestALostPositionIsADoubtUntilAnOperatorDecides(t *testing.T) {
	r := newNATSRig(t, natstest.Start(t).URL())
	r.add("a", "b")
	first := r.takeOver(&process{})
	r.awaitEmpty()
	r.stop(first)
	r.add("a", "b", "a")
	second := r.takeOver(killedAt(natsMessage))
	r.await("its end", second.of.killed)
	r.stop(second)
	subject := "epochfence-positions." + r.o.Stream + ".billing.orders.3.*"
	s, err := r.js.Stream(t.Context(), r.o.Stream)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Purge(t.Context(), jetstream.WithPurgeSubject(subject)); err != nil {
		t.Fatal(err)
	}
	var log lines
	r.o.Logger = log.logger()
	r.takeOver(&process{})
	r.await("an error for the operator", func() bool { return strings.Contains(log.String(), "purge the subject "+subject) })
	batch := r.batch().ID
	if text := log.String(); !strings.Contains(text, "discard entry "+itoa(batch)) {
		t.Errorf("the log has no remedy: %s", text)
	}
	r.db.Discard(batch) // the stream does not have its messages
	r.awaitEmpty()
	r.wantAll()
}

func TestADatabaseThatLostCommitsIsADoubtOnNATS(t *testing.T) {
	r := newNATSRig(t, natstest.Start(t).URL())
	r.add("a", "b", "a")
	r.db.Lock()
	standby := r.db.State
	r.db.Unlock()
	r.o.RetryMax = time.Hour // the session does not end
	run := r.takeOver(&process{})
	r.awaitSent()
	r.stop(run)
	r.db.Lock()
	r.db.State = standby
	r.db.Unlock()
	var log lines
	r.o.Logger = log.logger()
	r.takeOver(&process{})
	r.await("a doubt", func() bool { return strings.Contains(log.String(), "in doubt") })
	r.wantAll()
}

// A server allows 50 open batches of a stream. What it refuses comes later.
func TestMoreBatchesThanTheServerAllowsWaitForEachOther(t *testing.T) {
	t.Parallel()
	r := newNATSRig(t, natstest.Start(t).URL())
	var log lines
	r.o.Logger, r.o.RequestTimeout = log.logger(), patience // the wait below is no incident
	r.add("a", "b", "a")
	frozen := freezeAt(natsMessage, 0)
	r.takeOver(&process{at: frozen.at})
	frozen.await(r.rig)
	r.await("a 51st batch that is refused", func() bool { // the server abandons a batch after 10 s
		for range 50 {
			if err := r.js.Conn().PublishMsg(r.opens()); err != nil {
				t.Fatal(err)
			}
		}
		answer, err := r.js.Conn().RequestMsg(r.opens(), patience)
		if err != nil {
			t.Fatal(err)
		}
		return strings.Contains(string(answer.Data), "10210")
	})
	frozen.thaw()
	r.await("a refusal", func() bool { return strings.Contains(log.String(), "10176") })
	r.awaitEmpty()
	r.wantAll()
}

// opens returns a message that opens a batch, which never ends.
func (r *natsRig) opens() *nats.Msg {
	m := nats.NewMsg(r.o.Stream + ".x")
	m.Data = []byte("9")
	m.Header.Set("Nats-Batch-Id", rand.Text())
	m.Header.Set("Nats-Batch-Sequence", "1")
	return m
}

// Without atomic batches, message IDs hold while the stream remembers them.
func TestWithMessageIDsARepeatedBatchIsStoredOnceWithinTheWindow(t *testing.T) {
	r := newNATSRig(t, natstest.Start(t).URL(), func(c *jetstream.StreamConfig) { c.AllowAtomicPublish = false })
	r.o.MessageIDs = true
	for round := range 4 {
		r.add("a", "b", "a", "b", "a", "b")
		var seen atomic.Int64
		p := &process{}
		p.at = func(at int) {
			if at == natsMessage && seen.Add(1) == int64(round+1) || at == natsPosition && seen.Load() >= 3 && round == 3 {
				p.kill()
			}
		}
		run := r.takeOver(p)
		r.await("its end", p.killed)
		r.stop(run)
	}
	r.takeOver(&process{})
	r.awaitEmpty()
	r.wantAll()
}
