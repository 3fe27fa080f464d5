package batches_test

import (
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/epochfence/epochfence/internal/servers/kafkatest"
)

// A real broker that crashes at the end of a transaction often loses its markers: see kafka_real_test.go. Here the relay's
// first attempt to complete it does not succeed.

// withoutMarkers crashes the broker at the end of transactions, whose answer may be lost, until tried says that the relay
// has completed one, or begun to. at is what the process does from then on.
func withoutMarkers(t *testing.T, r *kafkaRig, b *kafkatest.Broker, lost bool, at func(p *process, step int), tried func() bool) bool {
	t.Helper()
	var armed, down atomic.Bool
	crashed, p := make(chan struct{}), &process{}
	p.at = func(step int) {
		if down.Load() {
			at(p, step)
		}
	}
	p.answered = func(step int) {
		if step == stepEnd && armed.CompareAndSwap(true, false) {
			b.Kill()
			down.Store(true)
			crashed <- struct{}{}
		}
	}
	p.lose = func(step int) bool { return lost && step == stepEnd && armed.Load() }
	r.takeOver(p)
	for range 3 { // on a busy machine, the broker may find its leaders
		r.add("a", "b", "-", "c")
		r.awaitEmpty()
		armed.Store(true)
		for range 10 {
			r.add("a", "b", "-", "c")
		}
		<-crashed
		if err := b.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
		r.await("the end", func() bool { return tried() || len(r.db.Left()) == 0 })
		if tried() {
			return true
		}
		down.Store(false)
	}
	t.Log("no markers were lost")
	return false
}

// InitProducerId makes Kafka forget how the transaction before has ended. The session that has asked before fails.
func TestRealResultIsRememberedAfterASessionThatFailed(t *testing.T) {
	b := kafkatest.Start(t, kafkatest.Config{})
	r := newKafkaRig(t, b.Addr)
	r.o.RequestTimeout = 6 * time.Second // a position is unstable after 3 s
	var log lines
	r.o.Logger = log.logger()
	var failed atomic.Bool
	withoutMarkers(t, r, b, true, func(p *process, step int) {
		switch {
		case step == stepFetch && failed.CompareAndSwap(false, true): // its InitProducerId was answered
			p.kill()
		case step == stepBegin && p.killed():
			p.revive()
		}
	}, func() bool { return strings.Contains(log.String(), "it is complete now") })
	if !failed.Load() {
		t.Error("no session has failed")
	}
	r.awaitEmpty()
	r.wantAll()
}

// The completion stands still for longer than the timeout of its transaction.
func TestRealCompletionThatKafkaAbortsIsADoubt(t *testing.T) {
	b := kafkatest.Start(t, kafkatest.Config{})
	r := newKafkaRig(t, b.Addr)
	r.o.Batch = 1000
	var log lines
	r.o.Logger = log.logger()
	const stepAddPartitions = 24 // only completions have it: see KIP-890
	frozen := freezeAt(stepEnd, 0)
	var begun atomic.Bool
	if !withoutMarkers(t, r, b, true, func(_ *process, step int) {
		if step == stepAddPartitions {
			begun.Store(true)
		}
		if begun.Load() {
			frozen.at(step)
		}
	}, begun.Load) {
		t.Skip("a broker that is busy finds the leaders of its partitions in time")
	}
	frozen.await(r.rig)
	admin, id := r.admin(), r.o.Prefix+"/billing/orders/3"
	r.await("Kafka's abort", func() bool {
		found, err := admin.DescribeTransactions(t.Context(), id)
		return err == nil && len(found) == 1 && found.Sorted()[0].State == "CompleteAbort"
	})
	frozen.thaw()
	r.await("an error for the operator", func() bool { return strings.Contains(log.String(), "may have the batch in a part of its topics") })
	for _, run := range r.all() {
		r.stop(run)
	}
	found := map[string]bool{}
	for _, ns := range r.read(r.target) {
		for _, n := range ns {
			found[strconv.Itoa(n)] = true
		}
	}
	for _, row := range r.db.Records() {
		if found[string(row.Body)] {
			r.db.Discard(row.ID)
		}
	}
	if _, err := admin.DeleteGroups(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	r.db.Discard(r.batch().ID)
	r.takeOver(&process{})
	r.awaitEmpty()
	r.wantAll()
}
