package batches_test

import (
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/outbox"
)

// A scan that ends early because of what others have in their entries is not the end.
func TestRecordsBehindLargeRequestsAreFound(t *testing.T) {
	r := newKafkaRig(t, onKfake(t))
	r.o.RetryMax = time.Hour // it does not look again
	request := outbox.Entry{Method: "POST", URL: "https://example.com", Body: []byte(strings.Repeat("x", 1<<20))}
	err := r.db.Do(0, func(tx *tx) error {
		for range 9 {
			if err := (table{}).Add(t.Context(), tx, epoch.Message{Partition: orders}, request); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	r.add("a", "b", "a")
	r.takeOver(&process{})
	r.awaitSent()
	r.wantAll()
}

// An operator may discard the assignment at any time. What Kafka has of it is not sent again.
func TestABatchThatIsDiscardedWhileItIsSentIsADoubt(t *testing.T) {
	r := newKafkaRig(t, onKfake(t))
	var log lines
	r.o.Logger, r.o.RetryMax = log.logger(), time.Hour
	r.add("a")
	r.takeOver(&process{})
	r.awaitSent() // the position has a batch
	r.stop(r.all()[0])
	r.add("a", "b", "a", "b", "a", "b", "a", "b")
	frozen := freezeAt(stepBegin, 2) // the transaction that assigns the next batch
	r.takeOver(&process{at: frozen.at})
	frozen.await(r.rig)
	r.db.Discard(r.batch().ID)
	frozen.thaw()
	r.await("a doubt", func() bool { return strings.Contains(log.String(), "in doubt") })
	if text := log.String(); !strings.Contains(text, "was discarded while it was sent") {
		t.Errorf("the log: %s", text)
	}
	if a, b := r.found()["a"], r.found()["b"]; len(a) != 3 || len(b) != 1 {
		t.Errorf("the topic has %v and %v, want the first batch behind the first record", a, b)
	}
}

// A batch is whole. By default, franz-go waits 10 ms for more records, and here for a minute.
func TestABatchDoesNotWaitForMoreRecords(t *testing.T) {
	r := newKafkaRig(t, onKfake(t))
	r.client = []kgo.Opt{kgo.SeedBrokers(r.seeds()...), kgo.ProducerLinger(time.Minute)}
	r.add("a", "b", "a")
	r.takeOver(&process{})
	r.awaitEmpty()
	r.wantAll()
	if failed := r.observed(outbox.Retrying); len(failed) > 0 {
		t.Errorf("tried again: %v", failed)
	}
}
