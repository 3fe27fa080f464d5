package main

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/kafkasource"
	"github.com/epochfence/epochfence/consumer/natssource"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/servers/natstest"
)

// answers asks whether the table may go, and wants the answer to name each of these.
func (l *live) answers(code int, parts ...string) {
	l.t.Helper()
	a := l.run("moveover", "--old-ended", "--wait", "0")
	if a.code != code {
		l.t.Errorf("exit code %d, want %d\n%s%s", a.code, code, a.out, a.errs)
	}
	tells(l.t, a.out, parts...)
}

// old joins the group as a consumer of the user's own does, and commits nothing.
func (l *live) old(options ...kgo.Opt) (leave func()) {
	l.t.Helper()
	c, err := kgo.NewClient(append(options, kgo.SeedBrokers(l.brokers...), kgo.ConsumerGroup("billing"), kgo.ConsumeTopics("orders"), kgo.DisableAutoCommit())...)
	must(l.t, err)
	l.t.Cleanup(c.Close)
	l.awaits("the old consumer reads", func() bool {
		ctx, cancel := context.WithTimeout(l.t.Context(), inTime)
		defer cancel()
		return c.PollFetches(ctx).NumRecords() > 0
	})
	return c.Close
}

func TestTheTableStaysUntilEachPositionHasPassedWhatTheOldConsumersCanHaveApplied(t *testing.T) {
	everywhere(t, func(t *testing.T, open func(broken) *place) {
		l := workers(t, open(func(m consumer.Message) bool { return string(m.Value) == "poison" }).halting())
		l.answers(exitTrouble, "NO", "no epochfence process has begun")
		l.produce(20)
		leave := l.old()
		leave()
		l.work()
		l.through()
		l.answers(exitOK, "YES", "2 partitions")
		if a := l.does(exitTrouble, "moveover", "--wait", "1m"); !strings.Contains(a.out, "--old-ended") {
			t.Errorf("nobody has said that the old processes have ended:\n%s", a.out)
		}

		// One that is paused, and one that has halted, have passed nothing.
		l.executes("pause", "orders/1")
		l.poison(0)
		l.produce(3)
		l.awaits("it has halted", func() bool { return strings.Contains(l.run("list").out, "halted") })
		l.answers(exitTrouble, "2 of 2 partitions", "billing/orders/0  halted", "is no order", "billing/orders/1  paused", "by anna", "epochfence resume billing/orders/1")
		l.executes("skip", "orders/0", "--through", "20")
		l.awaits("it continues", func() bool { return l.at(0).Next == 24 })
		l.answers(exitTrouble, "1 of 2 partitions", "billing/orders/1")
		var v moveOverView
		l.reads(&v, "moveover", "--old-ended", "--wait", "1m") // a paused one is not waited for
		if i := slices.IndexFunc(v.Partitions, func(p passedView) bool { return !p.Passed }); v.MayGo || i < 0 || v.Partitions[i].Number != 1 || *v.Partitions[i].Until != 23 {
			t.Errorf("as JSON: %+v", v)
		}
		l.executes("resume", "orders/1")
		if a := l.does(exitOK, "moveover", "--old-ended"); !strings.Contains(a.out, "YES") { // it waits
			t.Error(a.out)
		}

		// A topic that is not moved over, and one that the group has left.
		admin := kadm.NewClient(l.client)
		_, err := admin.CreateTopic(t.Context(), 1, 1, nil, "refunds")
		must(t, err)
		offsets := kadm.Offsets{}
		offsets.AddOffset("refunds", 0, 0, -1)
		l.stop()
		must(t, admin.CommitAllOffsets(t.Context(), "billing", offsets))
		l.answers(exitTrouble, "NO", "billing/refunds/0: the group has it, and the sink has no fence of it")
		l.does(exitOK, "moveover", "--old-ended", "--topic", "orders")

		// A partition that nobody has claimed, in the topic.
		_, err = admin.CreatePartitions(t.Context(), 1, "orders")
		must(t, err)
		l.awaits("the broker has it", func() bool {
			return strings.Contains(l.run("moveover", "--old-ended", "--topic", "orders", "--wait", "0").out, "billing/orders/2: the group has it")
		})
	})
}

// optIn is kgo's key for KIP-848.
var optIn any = "opt_in_kafka_next_gen_balancer_beta"

func TestAnOldConsumerThatHasPartitionsIsNotGone(t *testing.T) {
	for name, options := range map[string][]kgo.Opt{
		"classic": nil,
		"KIP-848": {kgo.WithContext(context.WithValue(context.Background(), optIn, true))},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := workers(t, inSQLite(t, none))
			l.produce(5)
			l.work()
			l.through()
			l.stop()
			l.answers(exitOK)
			l.produce(1)
			leave := l.old(options...)
			l.awaits("the old consumer is named", func() bool {
				a := l.run("moveover", "--old-ended", "--wait", "0")
				return a.code == exitTrouble && strings.Contains(a.out, "has partitions and owns no fence")
			})
			leave()
			l.awaits("it is no longer", func() bool { return !strings.Contains(l.run("moveover", "--old-ended", "--wait", "0").out, "member") })
			l.answers(exitTrouble, "2 of 2 partitions", "its owner is not alive (no sign of life), and no process has claimed it since")
		})
	}
}

// What an old consumer applies while it is looked for counts: the ends are those after it has gone.
func TestTheEndsOfTheLogsAreReadOnceTheOldConsumersHaveGone(t *testing.T) {
	l := workers(t, inSQLite(t, none))
	l.produce(5)
	l.work()
	l.through()
	l.stop()
	l.produce(1)
	leave := l.old()
	a := &app{flags: flags{database: l.url, kafka: l.brokers[0], bucket: "epochfence", timeout: inTime}}
	t.Cleanup(a.close)
	m := move{app: a, flags: moveOverFlags{ended: true}}
	until := func() int64 {
		v, err := m.look(t.Context())
		must(t, err)
		return *v.Partitions[0].Until
	}
	l.awaits("the old consumer is known", func() bool { return until() == 6 && !m.alone })
	l.produce(1)
	leave()
	l.awaits("it is gone", func() bool { until(); return m.alone })
	l.produce(1)
	if got := until(); got != 7 {
		t.Errorf("positions have to reach %d, want 7, where the log ended when the old consumer was gone", got)
	}
}

// What an old consumer reads of transactions that are open, as Kafka's default has it, it may have applied.
func TestAnOpenTransactionMayHaveBeenApplied(t *testing.T) {
	l := workers(t, inSQLite(t, none))
	l.produce(5)
	l.work()
	l.through()
	l.answers(exitOK)
	producer, err := kgo.NewClient(kgo.SeedBrokers(l.brokers...), kgo.TransactionalID("t"), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.DefaultProduceTopic("orders"))
	must(t, err)
	t.Cleanup(producer.Close)
	must(t, producer.BeginTransaction())
	must(t, producer.ProduceSync(t.Context(), &kgo.Record{Partition: 1, Value: []byte("order")}).FirstErr())
	l.answers(exitTrouble, "1 of 2 partitions", "billing/orders/1")
	must(t, producer.EndTransaction(t.Context(), kgo.TryAbort))
	l.does(exitOK, "moveover", "--old-ended") // the position passes what was aborted
}

// Whatever others write to the stream: a partition has its own messages alone.
func TestTheTableOfADurableConsumerGoesWithThePartitionsOwnMessages(t *testing.T) {
	server := natstest.Start(t)
	js := server.JetStream(t)
	_, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "orders", Subjects: []string{"orders.*"}})
	must(t, err)
	p := inSQLite(t, none)
	l := &live{cli: &cli{t, p.variables("EPOCHFENCE_NATS", server.URL())}, place: p}
	publish := func(subject string) {
		_, err := js.Publish(t.Context(), subject, []byte("order"))
		must(t, err)
	}
	publish("orders.even")
	publish("orders.odd")
	source, err := natssource.New(natssource.Options{Group: "billing", JetStream: js, Streams: []natssource.Stream{{Name: "orders", Filters: []string{"orders.even", "orders.odd"}}}})
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- p.consume(ctx, source, consumer.Options{}) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil && !errors.Is(err, context.Canceled) {
			t.Errorf("the consumer ended with %v", err)
		}
	})
	l.awaits("both are applied", func() bool { return len(l.applied()) == 2 })
	publish("orders.even")
	l.does(exitOK, "moveover", "--old-ended") // it waits until the position of the other passes it
	l.executes("pause", "orders/0")
	publish("orders.even")
	l.answers(exitTrouble, "NO", "billing/orders/0  paused")
}

// knownGroup is a broker that knows a group.
type knownGroup struct {
	broker
	membership
}

func (k knownGroup) groupOf(context.Context, string) (membership, error) { return k.membership, nil }
func (knownGroup) close()                                                {}

func (knownGroup) unfenced(context.Context, string, string, []epoch.Fence) ([]epoch.Partition, error) {
	return []epoch.Partition{partition(2), partition(3)}, nil
}

func TestWhoOwnsNoFenceAndWhatHasNoneIsNamed(t *testing.T) {
	fenceOf := func(n int32, owner string) epoch.Fence {
		return epoch.Fence{Origin: epoch.Origin{Partition: partition(n), Log: kafkaPrefix + "c/t"}, Owner: owner}
	}
	fences := []epoch.Fence{fenceOf(0, "host:17/m-0"), fenceOf(1, "a/b/m-1/instance")}
	refunds := fenceOf(0, "host:18/m-5")
	refunds.Partition.Topic = "refunds"
	owned := append(slices.Clone(fences), refunds)       // where --topic is orders
	kept := map[epoch.Partition]bool{partition(3): true} // by another database
	refund := epoch.Partition{Group: "billing", Topic: "refunds"}
	m := move{app: &app{flags: flags{kafka: "it is there"}}}
	m.brokers.kafka = knownGroup{membership: membership{
		members: []kafkasource.Member{
			hasPartitions("m-0", partition(0)), hasPartitions("m-1", partition(1)),
			hasPartitions("m-5", refunds.Partition),
			hasPartitions("m-3", partition(3)), hasPartitions("m-", partition(0)), hasPartitions("m-4", partition(0), partition(3)),
		},
		committed: []epoch.Partition{partition(0), partition(2), partition(3), refund},
	}}
	strangers, unfenced, err := m.others(t.Context(), fences, owned, kept)
	must(t, err)
	if all := strings.Join(strangers, "\n"); len(strangers) != 2 || !strings.HasPrefix(strangers[0], "member m- ") || !strings.HasPrefix(strangers[1], "member m-4 ") {
		t.Errorf("strangers:\n%s", all)
	}
	if all := strings.Join(unfenced, "\n"); len(unfenced) != 2 || !strings.HasPrefix(unfenced[0], "billing/orders/2:") || !strings.HasPrefix(unfenced[1], "billing/refunds/0:") {
		t.Errorf("without a fence:\n%s", all)
	}
	m.brokers.kafka = knownGroup{membership: membership{rebalancing: true}}
	if strangers, _, err = m.others(t.Context(), fences, owned, kept); err != nil || len(strangers) != 1 || !strings.Contains(strangers[0], "rebalancing") {
		t.Errorf("while it rebalances: %v, %v", strangers, err)
	}
}

func hasPartitions(id string, these ...epoch.Partition) kafkasource.Member {
	return kafkasource.Member{ID: id, Host: "h", Partitions: these}
}
