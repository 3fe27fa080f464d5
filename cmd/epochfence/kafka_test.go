package main

import (
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
)

// A process of the group has another database: what one of them applies, the other applies again.
func TestAGroupThatWritesToTwoDatabasesIsNoticed(t *testing.T) {
	one, other := inSQLite(t, none), inSQLite(t, none)
	var back atomic.Int64
	observe := func(e consumer.Event) {
		if e, ok := e.(consumer.WentBack); ok && e.Was.Claim != (epoch.ClaimID{}) {
			back.Add(1)
		}
	}
	one.observe, other.observe = observe, observe
	l := atWork(t, one)
	l.through()
	l.stop()
	l.work() // another owner of the same sink
	l.awaits("it is well", func() bool { return l.run("check").code == exitOK })
	if n := back.Load(); n != 0 {
		t.Errorf("one sink alone is %d times not the group's", n)
	}
	l.stop()

	l2 := workersOf(t, other, l.brokers...)
	l2.produced = l.produced
	l2.work()
	l2.through()
	if n := back.Load(); n != partitions {
		t.Errorf("the process with another database has reported %d of %d partitions", n, partitions)
	}
	l2.awaits("its own sink is well", func() bool { return l2.run("check").code == exitOK })
	const said = "which this sink does not have: a process of the group writes to another database"
	l.awaits("the sink of the other processes says so", func() bool {
		return strings.Count(l.run("check").out, said) == partitions
	})
	l2.stop()
	l.work() // it gets them back
	l.awaits("it has noticed", func() bool { return back.Load() == 2*partitions })
}

func TestStandingBehindAnOpenTransactionDoesNotLookWell(t *testing.T) {
	l := atWork(t, inSQLite(t, none))
	l.through()
	l.standsBehindAnOpenTransaction()
}

// standsBehindAnOpenTransaction begins after everything is applied.
func (l *live) standsBehindAnOpenTransaction() {
	t := l.t
	t.Helper()
	l.does(exitOK, "check", "--max-age", "1ms")
	producer, err := kgo.NewClient(kgo.SeedBrokers(l.brokers...), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.DefaultProduceTopic("orders"), kgo.TransactionalID("shop-7"))
	must(t, err)
	defer producer.Close()
	must(t, producer.BeginTransaction())
	for range 3 {
		must(t, producer.ProduceSync(t.Context(), &kgo.Record{Partition: 1, Value: []byte("order")}).FirstErr())
	}
	const said = `3 offsets beyond END can be read only when the open transaction of producer "shop-7" has ended; it is open since 20`
	tells(t, l.does(exitOK, "describe", "orders/1").out, " 0+3 ", "billing/orders/1: "+said)
	tells(t, l.does(exitTrouble, "check", "--max-age", "1ms").out, "TROUBLE: 1 finding", "open transaction of billing/orders/1: "+said)
	l.does(exitOK, "check") // it has been open for less than a minute
	must(t, producer.EndTransaction(t.Context(), kgo.TryAbort))
	l.awaits("nothing stands behind it", func() bool { return l.run("check", "--max-age", "1ms").code == exitOK })
}

func TestCheckSaysThatItMayNotReadWhatAGroupHasCommitted(t *testing.T) {
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.GroupMinSessionTimeout(time.Second), kfake.SeedTopics(partitions, "orders"))
	must(t, err)
	t.Cleanup(cluster.Close)
	l := workersOf(t, inSQLite(t, none), cluster.ListenAddrs()...)
	l.produce(1)
	l.work()
	l.through()
	const said = "what group billing has committed could not be read"
	if out := l.run("check").out; strings.Contains(out, said) {
		t.Errorf("nothing is refused: %s", out)
	}
	whole := true
	cluster.ControlKey(int16(kmsg.OffsetFetch), func(request kmsg.Request) (kmsg.Response, error, bool) {
		cluster.KeepControl()
		if !whole {
			return refusedInPart(request.(*kmsg.OffsetFetchRequest), cluster.TopicInfo("orders").TopicID), nil, true
		}
		answer := request.ResponseKind().(*kmsg.OffsetFetchResponse)
		answer.ErrorCode = kerr.GroupAuthorizationFailed.Code
		for _, g := range request.(*kmsg.OffsetFetchRequest).Groups {
			of := kmsg.NewOffsetFetchResponseGroup()
			of.Group, of.ErrorCode = g.Group, kerr.GroupAuthorizationFailed.Code
			answer.Groups = append(answer.Groups, of)
		}
		return answer, nil, true
	})
	if a := l.run("check"); !strings.Contains(a.out, said) || !strings.Contains(a.out, "GROUP_AUTHORIZATION_FAILED") {
		t.Errorf("exit code %d: %s%s", a.code, a.out, a.errs)
	}
	whole = false
	if a := l.run("check"); !strings.Contains(a.out, said) || !strings.Contains(a.out, "UNSTABLE_OFFSET_COMMIT") {
		t.Errorf("where one partition is refused, exit code %d: %s%s", a.code, a.out, a.errs)
	}
}

// refusedInPart answers with an error of one partition.
func refusedInPart(request *kmsg.OffsetFetchRequest, topicID [16]byte) kmsg.Response {
	answer := request.ResponseKind().(*kmsg.OffsetFetchResponse)
	for _, g := range request.Groups {
		p := kmsg.NewOffsetFetchResponseGroupTopicPartition()
		p.Offset, p.ErrorCode = -1, kerr.UnstableOffsetCommit.Code
		topic := kmsg.NewOffsetFetchResponseGroupTopic()
		topic.Topic, topic.TopicID, topic.Partitions = "orders", topicID, append(topic.Partitions, p)
		of := kmsg.NewOffsetFetchResponseGroup()
		of.Group, of.Topics = g.Group, append(of.Topics, topic)
		answer.Groups = append(answer.Groups, of)
	}
	return answer
}
