package batches_test

import (
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/outbox"
	"github.com/epochfence/epochfence/outbox/kafkaoutbox"
)

// addValue adds a record with a value of its own.
func (r *kafkaRig) addValue(topic, key string, value []byte) (id int64) {
	r.Helper()
	box := r.box(&process{})
	err := r.db.Do(0, func(tx *tx) error {
		return box.Add(r.Context(), tx, epoch.Message{Partition: orders}, kafkaoutbox.Record{Topic: topic, Key: []byte(key), Value: value})
	})
	if err != nil {
		r.Fatal(err)
	}
	r.db.Lock()
	defer r.db.Unlock()
	return r.db.Last
}

func (r *kafkaRig) ask(ids ...int64) {
	r.db.Lock()
	defer r.db.Unlock()
	r.db.Asked = ids
}

// awaitAsked waits until the relay has read the requests of ask.
func (r *kafkaRig) awaitAsked() {
	r.Helper()
	r.await("the request to be read", func() bool {
		r.db.Lock()
		defer r.db.Unlock()
		return r.db.Asked == nil
	})
}

func TestARecordThatWasRefusedDoesNotOvertakeOneOfItsBatch(t *testing.T) {
	r := newKafkaRig(t, onKfake(t))
	r.o.RetryMax = time.Millisecond // it is due again before the other is sent
	missing := "missing-" + r.target
	first := r.addValue(r.target, "k", []byte("1"))
	second := r.addValue(missing, "k", []byte("2"))
	var once sync.Once
	r.takeOver(&process{at: func(step int) {
		if step == stepBegin && len(r.observed(outbox.Refused)) > 0 {
			once.Do(func() {
				if _, err := r.admin().CreateTopics(t.Context(), 1, 1, nil, missing); err != nil {
					t.Error(err)
				}
			})
		}
	}})
	r.awaitSent()
	r.await("both", func() bool { return len(r.observed(outbox.Delivered)) == 2 })
	if got, want := r.observed(outbox.Delivered), []int64{first, second}; !slices.Equal(got, want) {
		t.Errorf("delivered %v, want %v", got, want)
	}
}

func TestAKeyWaitsForEachOfItsRefusedRecords(t *testing.T) {
	t.Parallel()
	r := newKafkaRig(t, onKfake(t))
	r.o.RetryMax = time.Hour
	first := r.addValue("missing-"+r.target, "k", []byte("1"))
	second := r.addValue(r.smallTopic(), "k", []byte(strings.Repeat("2", 5000)))
	r.takeOver(&process{})
	r.await("two refusals", func() bool { return len(r.observed(outbox.Refused)) == 2 })
	r.db.Discard(second)
	r.ask(second)
	r.awaitAsked()
	r.add("k", "z", "z", "z")
	r.await("the others", func() bool { return len(r.db.Records()) == 2 })
	for range 3 { // more turns
		r.add("z")
		r.await("one more", func() bool { return len(r.db.Records()) == 2 })
	}
	if got := r.read(r.target)["k"]; got != nil {
		t.Errorf("%v overtook entry %d of its key, which is refused", got, first)
	}
	r.db.Discard(first)
	r.ask(first)
	r.awaitSent()
	r.wantAll()
}

func TestARefusedRecordIsTriedAgainAfterTheSessionFailed(t *testing.T) {
	t.Parallel()
	r := newKafkaRig(t, onKfake(t))
	r.o.RetryMax = time.Hour
	missing := "missing-" + r.target
	id := r.addValue(missing, "k", []byte("1"))
	var log lines
	r.o.Logger = log.logger()
	p := &process{}
	r.takeOver(p)
	r.await("a refusal", func() bool { return len(r.observed(outbox.Refused)) == 1 })
	r.ask(id + 1)
	r.awaitAsked() // its batch is withdrawn
	p.kill()
	r.await("a failure", func() bool { return strings.Contains(log.String(), errKilled.Error()) })
	p.revive()
	r.createTopics(1, nil, missing)
	r.ask(id)
	r.awaitSent()
}

func TestARetryThatFailsWithoutARefusalWaitsAsTheOthersDo(t *testing.T) {
	t.Parallel()
	r := newKafkaRig(t, onKfake(t))
	r.o.RetryMax, r.o.RequestTimeout = time.Hour, 4*time.Second // a busy machine takes a second for a request
	missing := "missing-" + r.target
	id := r.addValue(missing, "k", []byte("1"))
	p := &process{}
	stop := stopAt(stepProduce, 0)
	p.at = func(step int) {
		if stop.is(step) {
			p.kill()
		}
	}
	r.takeOver(p)
	r.await("a refusal", func() bool { return len(r.observed(outbox.Refused)) == 1 })
	r.createTopics(1, nil, missing)
	r.ask(id)
	r.await("a retry that fails", func() bool { return slices.Contains(r.observed(outbox.Retrying), id) })
	p.revive()
	for n := range 3 {
		r.add("z")
		r.await("another", func() bool { return len(r.observed(outbox.Delivered)) == n+1 })
	}
	if left := r.db.Records(); len(left) != 1 || left[0].ID != id {
		t.Errorf("left: %+v, want entry %d alone", left, id)
	}
	r.ask(id)
	r.awaitSent()
}

// Requests of others, and records that wait, are not read in one transaction however many they are.
func TestOneTransactionReadsFewEntriesOfOthers(t *testing.T) {
	r := newKafkaRig(t, onKfake(t))
	err := r.db.Do(0, func(tx *tx) error {
		for range 3000 {
			if err := (table{}).Add(t.Context(), tx, epoch.Message{Partition: orders}, outbox.Entry{Method: "POST", URL: "https://example.com"}); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	r.add("a", "b")
	r.takeOver(&process{})
	r.awaitSent()
	r.db.Lock()
	most := r.db.Read
	r.db.Unlock()
	if most > 600 {
		t.Errorf("a transaction has read %d entries", most)
	}
	r.wantAll()
}

// 4096 is the limit of refused records in memory.
func TestAtItsLimitOfRefusedRecordsTheRelaySendsWhatTheyWaitFor(t *testing.T) {
	t.Parallel()
	r := newKafkaRig(t, onKfake(t))
	r.o.Batch = 5000
	missing := "missing-" + r.target
	r.add("k")
	r.addTo(missing, append(slices.Repeat([]string{"-"}, 4095), "k")...) // "k" is the last to be tried, and after the one above
	r.add("later")
	r.takeOver(&process{})
	r.await("the one that a refused one waits for", func() bool { return len(r.observed(outbox.Delivered)) == 1 })
	if n := len(r.observed(outbox.Refused)); n < 4096 {
		t.Errorf("%d were refused, want 4096", n)
	}
	later := r.added["later"]
	delete(r.added, "later")
	r.wantAll()
	r.createTopics(1, nil, missing)
	r.awaitSent()
	r.added["later"] = later
	r.wantAll()
}

// Otherwise a partition that sends nothing else would be in doubt once Kafka forgets the position.
func TestThePositionIsKeptWhileAllRecordsAreRefused(t *testing.T) {
	r := newKafkaRig(t, onKfake(t))
	r.addTo("missing-"+r.target, "k")
	r.takeOver(&process{})
	r.await("a refusal", func() bool { return len(r.observed(outbox.Refused)) > 0 })
	admin := r.admin()
	r.await("another position than the first", func() bool {
		offsets, err := admin.FetchOffsets(t.Context(), r.o.Prefix+"/billing/orders/3")
		at, ok := offsets.Lookup(r.o.Positions, 0)
		return err == nil && ok && at.At >= 1
	})
}

func TestTheLargestRecordIsSent(t *testing.T) {
	r := newKafkaRig(t, onKfake(t))
	r.addValue(r.target, "k", []byte("1"+strings.Repeat(" ", 999_000-2)))
	r.takeOver(&process{})
	r.awaitSent()
	if got := r.observed(outbox.Refused); len(got) > 0 {
		t.Errorf("refused: %v", got)
	}
}
