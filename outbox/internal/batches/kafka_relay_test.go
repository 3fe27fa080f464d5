package batches_test

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/outbox"
	"github.com/epochfence/epochfence/outbox/kafkaoutbox"
)

func TestRecordsArriveOnceAndInTheOrderOfTheirKeys(t *testing.T) {
	r := newKafkaRig(t, onKfake(t))
	r.add("a", "b", "-", "a", "b", "a", "a")
	r.takeOver(&process{})
	r.awaitEmpty()
	r.add("b", "a", "-")
	r.awaitEmpty()
	r.wantAll()
	if got := r.observed(outbox.Delivered); !slices.IsSorted(got) || len(got) != 10 {
		t.Errorf("delivered %v; want ten entries", got)
	}
}

// While Kafka adds the topics of records to a transaction, it refuses the group with
// CONCURRENT_TRANSACTIONS, and franz-go waits for up to seconds.
func TestThePositionComesFirstInEachTransaction(t *testing.T) {
	r := newKafkaRig(t, onKfake(t))
	r.o.RetryMax = time.Hour // the session does not end
	var mu sync.Mutex
	var came []int
	r.takeOver(&process{at: func(step int) {
		mu.Lock()
		defer mu.Unlock()
		switch step {
		case stepInit, stepFetch, stepPosition, stepProduce, stepEnd:
			if len(came) == 0 || came[len(came)-1] != step {
				came = append(came, step)
			}
		}
	}})
	r.add("a")
	r.awaitSent()
	r.add("a")
	r.awaitSent()
	mu.Lock()
	defer mu.Unlock()
	begin := []int{stepInit, stepFetch, stepInit, stepFetch, stepPosition, stepEnd, stepInit, stepFetch}
	batch := []int{stepPosition, stepProduce, stepEnd}
	if want := slices.Concat(begin, batch, batch); !slices.Equal(came, want) {
		t.Errorf("requests %v, want %v", came, want)
	}
}

func TestAnEntryThatCommitsLateIsNotMissed(t *testing.T) {
	r := newKafkaRig(t, onKfake(t))
	r.add("a", "b")
	var late outbox.Row
	_ = r.db.Do(0, func(tx *tx) error { // as if its transaction were open
		for id, row := range tx.Rows {
			if row.Key == "kafka:=a" {
				late = row
				delete(tx.Rows, id)
			}
		}
		return nil
	})
	r.takeOver(&process{})
	r.awaitEmpty()
	r.add("b", "b", "b", "b")
	r.awaitEmpty()
	_ = r.db.Do(0, func(tx *tx) error {
		tx.Rows[late.ID], tx.Added[late.ID] = late, tx.Commit
		return nil
	})
	r.add("b")
	r.awaitEmpty()
	r.wantAll()
}

func TestALargeBacklogGoesInBatchesOfBoundedBytes(t *testing.T) {
	r := newKafkaRig(t, onKfake(t))
	r.o.Batch = 1000
	box := r.box(&process{})
	const n, size = 20, 900_000
	err := r.db.Do(0, func(tx *tx) error {
		for range n {
			err := box.Add(t.Context(), tx, epoch.Message{Partition: orders}, kafkaoutbox.Record{Topic: r.target, Value: []byte("1" + strings.Repeat(" ", size))})
			if err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	type assigned struct {
		Name    string
		Entries []int64
		Ahead   *assigned
	}
	batches := map[string]int{}
	r.takeOver(&process{at: func(step int) {
		if step != stepCommitted {
			return
		}
		for _, row := range r.db.Left() {
			var a assigned
			if row.Method != "BATCH" || json.Unmarshal(row.Body, &a) != nil {
				continue
			}
			for at := &a; at != nil; at = at.Ahead {
				if n := len(at.Entries); n > 0 { // otherwise the session is about to end, or all are sent
					batches[at.Name] = n
				}
			}
		}
	}})
	r.awaitEmpty()
	for _, run := range r.all() {
		r.stop(run)
	}
	if got := slices.Collect(maps.Values(batches)); !slices.Equal(got, []int{4, 4, 4, 4, 4}) {
		t.Errorf("batches of %v records of 900 kB, want five of 4", got)
	}
}

func TestABatchHasAsManyRecordsAsItMay(t *testing.T) {
	r := newKafkaRig(t, onKfake(t))
	r.o.Batch = 1000
	r.add(slices.Repeat([]string{"a", "-"}, 500)...)
	var most int
	run := r.takeOver(&process{at: func(step int) {
		if step == stepProduce {
			if body := string(r.batch().Body); strings.Count(body, ",") > most {
				most = strings.Count(body, ",")
			}
		}
	}})
	r.awaitEmpty()
	r.stop(run)
	if most < 1000 {
		t.Errorf("the largest batch has about %d records, want all 1000", most)
	}
	r.wantAll()
}

// smallTopic makes a topic that refuses records of more than some hundred bytes.
func (r *kafkaRig) smallTopic() string {
	r.Helper()
	name, limit := "small-"+r.target, "300"
	r.createTopics(1, map[string]*string{"max.message.bytes": &limit}, name)
	return name
}

func poisonedAndOthers(t *testing.T, seed string) {
	for name, poison := range map[string]func(r *kafkaRig) string{
		"a topic that does not exist": func(r *kafkaRig) string { return "none-" + r.target },
		"a topic that refuses its size": func(r *kafkaRig) string {
			return r.smallTopic()
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newKafkaRig(t, seed)
			r.o.Batch, r.o.RetryMax = 8, time.Hour
			topic := poison(r)
			r.add("a", "b")
			box, large := r.box(&process{}), []byte("1"+strings.Repeat(" ", 5000))
			bad := func(key string) int64 {
				err := r.db.Do(0, func(tx *tx) error {
					return box.Add(t.Context(), tx, epoch.Message{Partition: orders}, kafkaoutbox.Record{Topic: topic, Key: []byte(key), Value: large})
				})
				if err != nil {
					t.Fatal(err)
				}
				return r.db.Last
			}
			first := bad("bad")
			second := bad("bad")
			third := bad("worse")
			r.add("a", "bad", "b", "-", "b")
			held := r.added["bad"]
			delete(r.added, "bad")
			r.takeOver(&process{})
			r.await("the refusals", func() bool {
				got := r.observed(outbox.Refused)
				return slices.Contains(got, first) && slices.Contains(got, third)
			})
			r.await("all others to be sent", func() bool { return len(r.db.Records()) == 4 })
			r.wantAll()
			if got := r.read(r.target)["bad"]; got != nil {
				t.Errorf("%v overtook an entry of its key that is refused", got)
			}
			if got := r.observed(outbox.Refused); slices.Contains(got, second) {
				t.Errorf("refused %v: entry %d waits for %d", got, second, first)
			}

			// An operator discards one, and wants another to be tried again.
			r.db.Discard(second)
			r.db.Discard(first)
			r.db.Lock()
			r.db.Asked = []int64{first, third}
			r.db.Unlock()
			r.await("what waited for it", func() bool { return len(r.db.Records()) == 1 })
			r.added["bad"] = held
			r.wantAll()
			if left := r.db.Records(); left[0].ID != third {
				t.Errorf("left: %+v, want entry %d", left, third)
			}
		})
	}
}

func TestARefusedRecordHoldsUpItsKeyAlone(t *testing.T) { poisonedAndOthers(t, onKfake(t)) }

func TestABatchWhosePositionIsLostWaitsForAnOperator(t *testing.T) {
	r := newKafkaRig(t, onKfake(t))
	r.add("a", "b")
	r.takeOver(&process{})
	r.awaitEmpty()
	r.stop(r.all()[0])
	r.add("a", "b", "a")
	first := r.takeOver(killedAt(stepProduce))
	r.await("its end", first.of.killed)
	r.stop(first)
	if _, err := r.admin().DeleteGroups(t.Context(), r.o.Prefix+"/billing/orders/3"); err != nil {
		t.Fatal(err)
	}
	batch := r.batch()
	var log lines
	r.o.Logger = log.logger()
	r.takeOver(&process{})
	r.await("an error for the operator", func() bool { return strings.Contains(log.String(), "does not know whether Kafka has a batch") })
	if text := log.String(); !strings.Contains(text, "discard entry "+itoa(batch.ID)) {
		t.Errorf("the log has no remedy: %s", text)
	}
	if n := len(r.db.Left()); n != 4 {
		t.Errorf("%d entries; want three and their batch", n)
	}
	r.db.Discard(batch.ID) // the topic does not have its records
	r.awaitEmpty()
	r.wantAll()
}

// Otherwise a position that is lost later would look like one that was never written.
func TestNoBatchIsAssignedBeforeThereIsAPosition(t *testing.T) {
	r := newKafkaRig(t, onKfake(t))
	r.add("a", "b", "a")
	first := r.takeOver(killedAt(stepProduce))
	r.await("its end", first.of.killed)
	r.stop(first)
	if _, err := r.admin().DeleteGroups(t.Context(), r.o.Prefix+"/billing/orders/3"); err != nil {
		t.Fatal(err)
	}
	frozen := freezeAt(stepBegin, 1) // it has seen the batch, and has a session
	r.takeOver(&process{at: func(step int) {
		frozen.at(step)
		for _, row := range r.db.Left() {
			if strings.Contains(string(row.Body), `"number":0,`) {
				t.Errorf("assigned: %s", row.Body)
			}
		}
	}})
	frozen.await(r.rig)
	r.db.Discard(r.batch().ID)
	frozen.thaw()
	r.awaitEmpty()
	r.wantAll()
}

func TestAPositionOfAnotherHistoryIsADoubt(t *testing.T) {
	r := newKafkaRig(t, onKfake(t))
	r.add("a")
	r.takeOver(&process{})
	r.awaitEmpty()
	r.stop(r.all()[0])
	r.add("b")
	// The database is restored: it has an assignment that Kafka's position has long passed.
	stopped := r.takeOver(killedAt(stepProduce))
	r.await("its end", stopped.of.killed)
	r.stop(stopped)
	r.db.Lock()
	restored := r.db.State
	r.db.Unlock()
	r.takeOver(&process{})
	r.awaitEmpty()
	r.add("b")
	r.awaitEmpty()
	for _, run := range r.all() {
		r.stop(run)
	}
	r.db.Lock()
	r.db.State = restored
	r.db.Unlock()
	var log lines
	r.o.Logger = log.logger()
	r.takeOver(&process{})
	r.await("an error for the operator", func() bool { return strings.Contains(log.String(), "in doubt") })
	r.wantAll()
}

func TestWithoutATopicForPositionsNothingIsSentAndTheErrorSaysSo(t *testing.T) {
	r := newKafkaRig(t, onKfake(t))
	r.o.Positions = "none"
	var log lines
	r.o.Logger = log.logger()
	r.add("a")
	r.takeOver(&process{})
	r.await("an error", func() bool { return strings.Contains(log.String(), "topic none, which must exist") })
	r.createTopics(1, nil, "none")
	r.awaitEmpty()
	r.wantAll()
}

// A hundred idle partitions hold no connections, and no transactions are begun at Kafka for them.
func TestAnIdlePartitionHasNoProducer(t *testing.T) {
	r := newKafkaRig(t, onKfake(t))
	var mu sync.Mutex
	requests := 0
	r.takeOver(&process{at: func(step int) {
		if step >= 0 {
			mu.Lock()
			defer mu.Unlock()
			requests++
		}
	}})
	transactions := func() int {
		r.db.Lock()
		defer r.db.Unlock()
		return r.db.Begun
	}
	r.await("some looks", func() bool { return transactions() > 5 })
	mu.Lock()
	if requests > 0 {
		t.Errorf("%d requests without a record", requests)
	}
	mu.Unlock()
	r.add("a")
	r.awaitEmpty()
	before := transactions()
	r.await("a rest", func() bool { return transactions() > before+3 })
	mu.Lock()
	sent := requests
	mu.Unlock()
	before = transactions()
	r.await("some looks", func() bool { return transactions() > before+5 })
	mu.Lock()
	defer mu.Unlock()
	if requests > sent {
		t.Errorf("%d more requests without a record", requests-sent)
	}
}

func TestTheBacklogIsReported(t *testing.T) {
	r := newKafkaRig(t, onKfake(t))
	var mu sync.Mutex
	var got []int
	r.o.ObserveBacklog = func(b outbox.Backlog) {
		mu.Lock()
		defer mu.Unlock()
		got = append(got, b.Entries)
	}
	r.add("a", "a", "a", "a")
	r.takeOver(&process{})
	r.await("an empty backlog", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(got) > 1 && got[len(got)-1] == 0
	})
	mu.Lock()
	defer mu.Unlock()
	if got[0] < 4 {
		t.Errorf("backlogs of %v; want four at first", got)
	}
}

// Requests over HTTP are in the same store, and another relay sends them.
func TestOnlyRecordsAreSent(t *testing.T) {
	r := newKafkaRig(t, onKfake(t))
	err := r.db.Do(0, func(tx *tx) error {
		return table{}.Add(t.Context(), tx, epoch.Message{Partition: orders}, outbox.Entry{Key: "a", Method: "POST", URL: "https://example.com"})
	})
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var backlogs []int
	r.o.ObserveBacklog = func(b outbox.Backlog) {
		mu.Lock()
		defer mu.Unlock()
		backlogs = append(backlogs, b.Entries)
	}
	r.add("a", "b")
	run := r.takeOver(&process{})
	r.await("the request alone", func() bool { return len(r.db.Left()) == 1 })
	r.wantAll()
	r.stop(run)
	if backlogs[0] != 3 || backlogs[len(backlogs)-1] != 1 { // the request is still there
		t.Errorf("backlogs of %v, want 3 first and 1 last", backlogs)
	}
}
