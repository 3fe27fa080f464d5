package batches_test

import (
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

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
	subject := "epochfence-positions." + r.o.Stream + ".billing.orders.3"
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
	for n := range 50 {
		m := r.open("other-" + strconv.Itoa(n))
		if n == 49 && m != "" {
			t.Fatalf("the 50th is refused: %s", m)
		}
	}
	if m := r.open("one-more"); !strings.Contains(m, "10210") {
		t.Fatalf("the 51st is not refused: %s", m)
	}
	var log lines
	r.o.Logger = log.logger()
	r.add("a", "b", "a")
	r.takeOver(&process{})
	r.await("a refusal", func() bool { return strings.Contains(log.String(), "10176") })
	r.awaitEmpty() // the server abandons batches after 10 s
	r.wantAll()
}

// open opens a batch that never ends, and returns the answer.
func (r *natsRig) open(id string) string {
	r.Helper()
	m := newMsg(r.o.Stream+".x", "9")
	m.Header.Set("Nats-Batch-Id", id)
	m.Header.Set("Nats-Batch-Sequence", "1")
	answer, err := r.js.Conn().RequestMsg(m, patience)
	if err != nil {
		r.Fatal(err)
	}
	return string(answer.Data)
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
