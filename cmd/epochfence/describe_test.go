package main

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/epochfence/epochfence/consumer/kafkasource"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/operate"
	"github.com/epochfence/epochfence/sinks/sqlsink"
)

// While a group is moved over, its partitions are still those of the old consumers.
func TestAPartitionThatNobodyHasClaimedIsWhereItsGroupHasCommitted(t *testing.T) {
	t.Parallel()
	l := workers(t, inSQLite(t, none))
	l.produce(5)
	l.work()
	l.through()
	l.stop()
	admin := kadm.NewClient(l.client)
	_, err := admin.CreatePartitions(t.Context(), 1, "orders")
	must(t, err)
	fresh, err := kgo.NewClient(kgo.SeedBrokers(l.brokers...), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.DefaultProduceTopic("orders"))
	must(t, err)
	t.Cleanup(fresh.Close)
	for range 5 {
		must(t, fresh.ProduceSync(t.Context(), &kgo.Record{Partition: 2, Value: []byte("order")}).FirstErr())
	}
	db, err := sql.Open("sqlite", l.url)
	must(t, err)
	t.Cleanup(func() { _ = db.Close() })
	sink, err := sqlsink.Open(t.Context(), db, sqlsink.SQLite, sqlsink.Options{})
	must(t, err)
	origin := l.at(0).Origin
	origin.Partition.Number = 2
	must(t, sink.Seed(t.Context(), []epoch.Start{{Origin: origin}}))

	row := func() string {
		for line := range strings.Lines(l.does(exitOK, "describe", "orders/2").out) {
			if fields := strings.Fields(line); len(fields) > 1 && fields[1] == "unclaimed" {
				return strings.Join(fields, " ")
			}
		}
		return ""
	}
	if got, want := row(), "billing/orders/2 unclaimed 0 - 0 5 5 - -"; got != want {
		t.Errorf("nothing is committed: %q, want %q", got, want)
	}
	offsets := kadm.Offsets{}
	offsets.AddOffset("orders", 2, 3, -1)
	must(t, admin.CommitAllOffsets(t.Context(), "billing", offsets))
	if got, want := row(), "billing/orders/2 unclaimed 0 3 0 5 2 - -"; got != want {
		t.Errorf("3 is committed: %q, want %q", got, want)
	}
	tells(t, l.run("describe", "orders/2").out, "Others have committed offset 3 for its group")
}

// During a canary, the group gives a partition back to an old consumer, and its fence still names the new one.
func TestPartitionsThatOldConsumersHaveAreNotFenced(t *testing.T) {
	t.Parallel()
	l := workers(t, inSQLite(t, none))
	l.produce(20)
	fenced := func() (words string) {
		for line := range strings.Lines(l.does(exitOK, "describe").out) {
			if fields := strings.Fields(line); len(fields) > 7 && strings.HasPrefix(fields[0], "billing/orders/") {
				words += "," + fields[7]
			}
		}
		return words
	}
	l.work()
	l.through()
	l.awaits("both are fenced", func() bool { return fenced() == ",yes,yes" })
	old, err := kgo.NewClient(kgo.SeedBrokers(l.brokers...), kgo.ConsumerGroup("billing"), kgo.ConsumeTopics("orders"), kgo.DisableAutoCommit())
	must(t, err)
	t.Cleanup(old.Close)
	l.awaits("the old consumer has one of them", func() bool { words := fenced(); return words == ",yes,no" || words == ",no,yes" })
	var v struct {
		Partitions []describedView `json:"partitions"`
	}
	l.reads(&v, "describe")
	for _, p := range v.Partitions {
		if p.Fenced == nil || p.State != claimed {
			t.Errorf("as JSON, %s is %s and fenced: %v", p.Name, p.State, p.Fenced)
		}
	}
	old.Close()
	l.awaits("both are fenced again", func() bool { return fenced() == ",yes,yes" })
}

// askedOf is a broker that counts how often it was asked who the members of a group are.
type askedOf struct {
	knownGroup
	times *int
}

func (b askedOf) groupOf(context.Context, string) (membership, error) {
	*b.times++
	return b.membership, nil
}

func TestWhoHasAPartitionIsAskedOnceForEachGroupAndNotOfABrokerOutOfReach(t *testing.T) {
	ofKafka, ofNATS := 0, 0
	a := &app{flags: flags{kafka: "it is there", nats: "it is there"}}
	a.brokers.kafka = askedOf{knownGroup{membership: membership{members: []kafkasource.Member{hasPartitions("m-0", partition(0))}}}, &ofKafka}
	a.brokers.nats = askedOf{times: &ofNATS}
	ps := make([]operate.Partition, 4)
	for i, log := range []string{"ORDERS@1/0/1/orders.0", kafkaPrefix + "c/t", kafkaPrefix + "c/t", kafkaPrefix + "c/t"} {
		ps[i].Fence = epoch.Fence{Origin: epoch.Origin{Partition: partition(int32(max(i-1, 0))), Log: log}, Owner: "host:17/m-0"}
	}
	ps[0].Fence.Partition.Topic = "jobs"
	ps[3].Fence.Partition.Group = "shipping"
	es := make([]extent, len(ps))
	es[3].err = errors.New("out of reach")
	fenced, without := a.fenced(t.Context(), ps, es)
	if ofKafka != 1 || ofNATS != 1 || len(fenced) != 1 || !fenced[partition(0)] || len(without) > 0 {
		t.Errorf("asked Kafka %d and NATS %d times: %v, %v", ofKafka, ofNATS, fenced, without)
	}
}
