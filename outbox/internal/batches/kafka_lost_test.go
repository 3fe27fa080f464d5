package batches_test

import (
	"strings"
	"testing"
	"time"

	"github.com/epochfence/epochfence/outbox"
)

// The histories of this file lose commits of the database, or the assignment of a batch. None sends a record twice.

func TestADatabaseThatLostCommitsIsADoubtOnKafka(t *testing.T) {
	for name, before := range map[string]bool{"as its first batch": false, "after others": true} {
		t.Run(name, func(t *testing.T) {
			r := newKafkaRig(t, onKfake(t))
			r.o.RetryMax = time.Hour // the session does not end
			if before {
				r.add("a")
				run := r.takeOver(&process{})
				r.awaitSent()
				r.stop(run)
			}
			r.add("a", "b", "a", "b", "a")
			r.db.Lock()
			standby := r.db.State // it has the handler's commit, and none of the relay's
			r.db.Unlock()
			run := r.takeOver(&process{})
			r.awaitSent()
			r.stop(run)
			r.db.Lock()
			r.db.State = standby
			r.db.Unlock()
			r.inDoubt()
		})
	}
}

func TestABatchThatWasDiscardedAfterKafkaHadItIsADoubt(t *testing.T) {
	r := newKafkaRig(t, onKfake(t))
	r.add("a")
	zeroth := r.takeOver(&process{})
	r.awaitEmpty()
	r.stop(zeroth)
	r.add("a", "b")
	ended, p := stopAt(stepEnd, 0), &process{}
	p.at = func(step int) {
		ended.is(step)
		select {
		case <-ended.came:
			if step == stepBegin {
				p.kill()
			}
		default:
		}
	}
	first := r.takeOver(p)
	r.await("its end", p.killed)
	r.stop(first)
	r.db.Discard(r.batch().ID)
	r.inDoubt()
}

// inDoubt runs a relay that does not know whether Kafka has the records that are left, and then follows the remedy.
func (r *kafkaRig) inDoubt() {
	r.Helper()
	var log lines
	r.o.Logger, r.o.RetryMax = log.logger(), 50*time.Millisecond
	backlog := make(chan int, 1)
	r.o.ObserveBacklog = func(b outbox.Backlog) {
		select {
		case backlog <- b.Entries:
		default:
		}
	}
	left := r.db.Records()
	run := r.takeOver(&process{})
	group := r.o.Prefix + "/billing/orders/3"
	r.await("an error for the operator", func() bool { return strings.Contains(log.String(), "delete the group "+group) })
	if n := <-backlog; n != len(left) {
		r.Errorf("a backlog of %d, want %d", n, len(left))
	}
	r.await("a record that is observed to wait", func() bool { return len(r.observed(outbox.Retrying)) > 0 })
	r.wantAll()
	r.stop(run)
	if _, err := r.admin().DeleteGroups(r.Context(), group); err != nil { // or Kafka forgets the position in time
		r.Fatal(err)
	}
	var later lines
	r.o.Logger = later.logger()
	r.takeOver(&process{})
	r.await("the same doubt", func() bool { return strings.Contains(later.String(), "the position in Kafka is none") })
	if text := later.String(); !strings.Contains(text, "discard entry "+itoa(r.batch().ID)) {
		r.Errorf("the log has no remedy: %s", text)
	}
	r.wantAll()
	for _, row := range left { // the topic has them
		r.db.Discard(row.ID)
	}
	for _, row := range r.db.Left() {
		r.db.Discard(row.ID)
	}
	r.add("b", "a")
	r.awaitEmpty()
	r.wantAll()
}
