package batches_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// In the histories of this file, Kafka has written the end of a batch in a part of its partitions, and the process
// that completes it stops. The batch is never sent again if it may be in one of them.

const stepAddOffsets = 25

// ending is a Kafka that has written no end of a transaction into the group.
type ending struct {
	*kafkaRig
	c  *kfake.Cluster
	id string

	mu       sync.Mutex
	unstable bool
}

// half has a batch after others that Kafka has committed, and neither in its position nor in partition 1 of its topic.
// Its process has died. half returns the batch.
func half(t *testing.T) (e *ending, number int64, name string) {
	t.Helper()
	c := startKfake(t)
	e = &ending{kafkaRig: newKafkaRig(t, c.ListenAddrs()[0]), c: c, unstable: true}
	e.id = e.o.Prefix + "/billing/orders/3"
	e.o.RetryMax = time.Hour // it does not become idle
	e.add("a")
	zeroth := e.takeOver(&process{})
	e.awaitSent()
	e.stop(zeroth)
	e.o.Batch = 8
	e.add("a", "b", "c", "d", "e", "f")
	p := &process{}
	frozen := freezeAt(stepEnd, 0)
	p.at = frozen.at
	first := e.takeOver(p)
	frozen.await(e.rig)
	was := e.describe()
	p.kill()
	marker, topic := kmsg.NewWriteTxnMarkersRequestMarker(), kmsg.NewWriteTxnMarkersRequestMarkerTopic()
	topic.Topic, topic.Partitions = e.target, []int32{0}
	marker.ProducerID, marker.ProducerEpoch, marker.Committed, marker.Topics = was.ProducerID, was.ProducerEpoch, true, append(marker.Topics, topic)
	req := kmsg.NewPtrWriteTxnMarkersRequest()
	req.Markers = append(req.Markers, marker)
	cl, err := kgo.NewClient(kgo.SeedBrokers(e.seeds()...))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	if _, err := req.RequestWith(t.Context(), cl); err != nil {
		t.Fatal(err)
	}
	frozen.thaw()
	e.stop(first)
	e.kafkaRig.unstable(c, func() bool { e.mu.Lock(); defer e.mu.Unlock(); return e.unstable })
	e.describedOnce("CompleteCommit", was.ProducerID, was.ProducerEpoch)
	var batch struct {
		Number int64
		Name   string
	}
	if err := json.Unmarshal(e.batch().Body, &batch); err != nil {
		t.Fatal(err)
	}
	return e, batch.Number, batch.Name
}

func (e *ending) describe() kadm.DescribedTransaction {
	e.Helper()
	found, err := e.admin().DescribeTransactions(e.Context(), e.id)
	if err != nil {
		e.Fatal(err)
	}
	return found.Sorted()[0]
}

// describedOnce is the answer to the next DescribeTransactions: kfake has no more than Ongoing and Empty.
func (e *ending) describedOnce(state string, id int64, epoch int16) {
	e.c.ControlKey(stepDescribe, func(kreq kmsg.Request) (kmsg.Response, error, bool) {
		resp := kreq.ResponseKind().(*kmsg.DescribeTransactionsResponse)
		resp.TransactionStates = append(resp.TransactionStates, kmsg.DescribeTransactionsResponseTransactionState{
			TransactionalID: e.id, State: state, ProducerID: id, ProducerEpoch: epoch,
		})
		return resp, nil, true
	})
}

func (e *ending) stable() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.unstable = false
}

// isDoubt awaits the doubt, and follows its remedy: each record is there once.
func (e *ending) isDoubt(log *lines) {
	e.Helper()
	e.await("an error for the operator", func() bool {
		return strings.Contains(log.String(), "may have the batch in a part of its topics") && strings.Contains(log.String(), "delete the group "+e.id)
	})
	found := map[int]bool{}
	for _, ns := range e.read(e.target) {
		for _, n := range ns {
			if found[n] {
				e.Errorf("record %d is there twice", n)
			}
			found[n] = true
		}
	}
	left := e.db.Records()
	there := 0
	for _, row := range left {
		if n, err := strconv.Atoi(string(row.Body)); err == nil && found[n] {
			there++
		}
	}
	if len(left) != 6 || there == 0 || there == 6 {
		e.Fatalf("%d records are left, of which the topic has %d; want 6, and a part of them", len(left), there)
	}
	for _, run := range e.all() {
		e.stop(run)
	}
	for _, row := range left {
		if n, err := strconv.Atoi(string(row.Body)); err == nil && found[n] {
			e.db.Discard(row.ID)
		}
	}
	if _, err := e.admin().DeleteGroups(e.Context(), e.id); err != nil {
		e.Fatal(err)
	}
	e.db.Discard(e.batch().ID)
	e.takeOver(&process{})
	e.awaitSent()
	got := e.read(e.target)
	sum := 0
	for _, ns := range got {
		sum += len(ns)
	}
	if sum != 7 {
		e.Errorf("the topic has %v, want 7 records", got)
	}
}

func TestACompletionThatIsAbortedInAPartIsADoubt(t *testing.T) {
	for name, stops := range map[string]func(e *ending, p *process){
		"its process dies": func(e *ending, p *process) {
			p.kill()
			e.stable() // InitProducerId aborts what was begun
		},
		"another owner comes": func(e *ending, _ *process) {
			e.stable()
			e.takeOver(&process{})
		},
		"Kafka's patience ends, and its abort is described": func(e *ending, _ *process) {
			e.await("an abort", func() bool { return e.describe().State != "Ongoing" })
			was := e.describe()
			e.describedOnce("CompleteAbort", was.ProducerID, was.ProducerEpoch)
			e.stable()
		},
		"Kafka's patience ends": func(e *ending, _ *process) {
			e.await("an abort", func() bool { return e.describe().State != "Ongoing" })
			e.stable()
		},
	} {
		for _, at := range []int{stepAddOffsets, stepEnd} {
			t.Run(fmt.Sprintf("%s before step %d", name, at), func(t *testing.T) {
				t.Parallel()
				e, _, _ := half(t)
				var log lines
				e.o.Logger, e.o.RetryMax = log.logger(), 50*time.Millisecond
				frozen := freezeAt(at, 0)
				p := &process{at: frozen.at}
				run := e.takeOver(p)
				frozen.await(e.rig)
				stops(e, p)
				frozen.thaw()
				if p.killed() {
					e.stop(run)
					e.takeOver(&process{})
				}
				e.isDoubt(&log)
			})
		}
	}
}

// Kafka has aborted the completion in the topics, and the position is as unstable as before. A completion with that
// result would make it say that nothing of the batch was committed.
func TestACompletionThatWasAbortedIsNotCompleted(t *testing.T) {
	t.Parallel()
	e, _, _ := half(t)
	var log lines
	e.o.Logger, e.o.RetryMax = log.logger(), 50*time.Millisecond
	p := &process{}
	frozen := freezeAt(stepAddOffsets, 0)
	p.at = frozen.at
	run := e.takeOver(p)
	frozen.await(e.rig)
	p.kill()
	was := e.describe()
	frozen.thaw()
	e.stop(run)
	e.describedOnce("CompleteAbort", was.ProducerID, was.ProducerEpoch+1)
	e.ends(func() { t.Error("a transaction was ended") })
	e.bumped(was.ProducerID, was.ProducerEpoch+2)
	e.takeOver(&process{})
	e.await("an error for the operator", func() bool { return strings.Contains(log.String(), "find-hanging") })
}

// ends calls f for each EndTxn.
func (e *ending) ends(f func()) {
	e.c.ControlKey(stepEnd, func(kmsg.Request) (kmsg.Response, error, bool) {
		e.c.KeepControl()
		f()
		return nil, nil, false
	})
}

// bumped is the answer to InitProducerId.
func (e *ending) bumped(id int64, epoch int16) {
	e.c.ControlKey(stepInit, func(kreq kmsg.Request) (kmsg.Response, error, bool) {
		e.c.KeepControl()
		resp := kreq.ResponseKind().(*kmsg.InitProducerIDResponse)
		resp.ProducerID, resp.ProducerEpoch = id, epoch
		return resp, nil, true
	})
}

// Then nothing was aborted, and the result is in the database.
func TestACompletionThatHasAddedNothingBeginsAnew(t *testing.T) {
	t.Parallel()
	e, number, name := half(t)
	const stepAddPartitions = 24
	p := killedAt(stepAddPartitions)
	run := e.takeOver(p)
	e.await("its end", p.killed)
	e.stop(run)
	var mu sync.Mutex
	var ends []bool
	e.c.ControlKey(stepEnd, func(kreq kmsg.Request) (kmsg.Response, error, bool) {
		e.c.KeepControl()
		mu.Lock()
		defer mu.Unlock()
		if ends = append(ends, kreq.(*kmsg.EndTxnRequest).Commit); len(ends) == 1 {
			e.positioned(number, name)
			e.stable()
		}
		return nil, nil, false
	})
	e.takeOver(&process{})
	e.awaitSent()
	mu.Lock()
	defer mu.Unlock()
	if len(ends) != 1 || !ends[0] {
		t.Errorf("ends of transactions: %v, want one that commits", ends)
	}
}

// positioned is the position from now on: kfake has aborted it with its transaction.
func (e *ending) positioned(number int64, name string) {
	metadata := "epochfence batch " + name
	e.c.ControlKey(stepFetch, func(kreq kmsg.Request) (kmsg.Response, error, bool) {
		e.c.KeepControl()
		resp := kreq.ResponseKind().(*kmsg.OffsetFetchResponse)
		group, topic, p := kmsg.NewOffsetFetchResponseGroup(), kmsg.NewOffsetFetchResponseGroupTopic(), kmsg.NewOffsetFetchResponseGroupTopicPartition()
		p.Offset, p.Metadata = number, &metadata
		group.Group = e.id
		topic.Topic, topic.Partitions = e.o.Positions, append(topic.Partitions, p)
		group.Topics = append(group.Topics, topic)
		resp.Groups = append(resp.Groups, group)
		return resp, nil, true
	})
}

// The transaction before the assigned batch is the one to complete. It has ended as it was to, so that the batch was not sent.
func TestABatchThatWasNotSentIsSentAfterTheCompletionOfTheOneBefore(t *testing.T) {
	for name, dies := range map[string]bool{"by the same process": false, "by the next one": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := startKfake(t)
			e := &ending{kafkaRig: newKafkaRig(t, c.ListenAddrs()[0]), c: c, unstable: true}
			e.id = e.o.Prefix + "/billing/orders/3"
			e.o.RetryMax = time.Hour
			e.add("a", "b")
			p := &process{}
			frozen := freezeAt(stepPosition, 2) // the first position, that of the first batch, and the second
			p.at = frozen.at
			e.takeOver(p)
			e.awaitSent()
			e.add("a", "c")
			frozen.await(e.rig)
			p.kill()
			frozen.thaw()
			e.stop(e.all()[0])
			was := e.describe()
			e.describedOnce("CompleteCommit", was.ProducerID, was.ProducerEpoch)
			e.kafkaRig.unstable(c, func() bool { e.mu.Lock(); defer e.mu.Unlock(); return e.unstable })
			p = &process{}
			ended, once := make(chan struct{}), sync.Once{}
			p.at = func(step int) {
				select {
				case <-ended:
					if dies && step == stepBegin {
						p.kill()
					}
				default:
				}
			}
			p.answered = func(step int) {
				if step == stepEnd {
					once.Do(func() { e.stable(); close(ended) })
				}
			}
			run := e.takeOver(p)
			if dies {
				e.await("its end", p.killed)
				e.stop(run)
				was := e.describe()
				e.describedOnce("CompleteCommit", was.ProducerID, was.ProducerEpoch)
				e.takeOver(&process{})
			}
			e.awaitSent()
			e.wantAll()
		})
	}
}

// The last transaction may be of the batch that was assigned ahead. It ends in the topics of that one, too, and the
// entries of both are gone.
func TestABatchThatWasAssignedAheadIsCompletedInItsTopics(t *testing.T) {
	t.Parallel()
	c := startKfake(t)
	e := &ending{kafkaRig: newKafkaRig(t, c.ListenAddrs()[0]), c: c, unstable: true}
	e.id = e.o.Prefix + "/billing/orders/3"
	e.o.RetryMax, e.o.Batch, e.o.RequestTimeout = time.Hour, 2, patience
	other := e.target + "-other"
	e.createTopics(1, nil, other)
	e.add("a", "b")
	e.addTo(other, "c")
	p := &process{}
	frozen := freezeAt(stepEnd, 2) // the first position, the first batch, and the one ahead
	third := stopAt(stepBegin, 3)  // after the look, the assignment, and the one ahead
	p.at = func(step int) {
		if third.is(step) {
			<-frozen.came // the database knows of both batches
		}
		frozen.at(step)
	}
	first := e.takeOver(p)
	frozen.await(e.rig)
	was := e.describe()
	p.kill()
	frozen.thaw()
	e.stop(first)
	var batch struct {
		Ahead *struct {
			Number int64
			Name   string
		}
	}
	if err := json.Unmarshal(e.batch().Body, &batch); err != nil || batch.Ahead == nil {
		t.Fatalf("the assignment is %s, want two batches: %v", e.batch().Body, err)
	}
	e.describedOnce("CompleteCommit", was.ProducerID, was.ProducerEpoch)
	e.kafkaRig.unstable(c, func() bool { e.mu.Lock(); defer e.mu.Unlock(); return e.unstable })
	topics := make(chan []string, 1)
	const stepAddPartitions = 24
	e.c.ControlKey(stepAddPartitions, func(kreq kmsg.Request) (kmsg.Response, error, bool) {
		var all []string
		for _, topic := range kreq.(*kmsg.AddPartitionsToTxnRequest).Topics {
			all = append(all, topic.Topic)
		}
		topics <- all
		e.positioned(batch.Ahead.Number, batch.Ahead.Name)
		e.stable()
		return nil, nil, false
	})
	e.takeOver(&process{})
	e.awaitSent()
	if got := <-topics; !slices.Contains(got, e.target) || !slices.Contains(got, other) {
		t.Errorf("the completion is in the topics %v, want %s and %s", got, e.target, other)
	}
}
