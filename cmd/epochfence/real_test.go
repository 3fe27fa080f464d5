package main

import (
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/servers/kafkatest"
)

// On Apache Kafka itself: lag, positions by time, and a topic that was created again.
func TestRealKafkaIsReadAndSteeredAround(t *testing.T) {
	broker := kafkatest.Start(t, kafkatest.Config{})
	p := inPostgres(t, none)
	l := workersOf(t, p, broker.Addr)
	admin := kadm.NewClient(l.client)
	create := func() {
		t.Helper()
		_, err := admin.CreateTopic(t.Context(), partitions, 1, nil, "orders")
		must(t, err)
	}
	create()
	l.produce(30)
	l.work()
	l.through()
	between := time.Now()
	l.produce(20)
	l.through()

	l.executes("rewind", "orders/1", "--to", "@"+between.UTC().Format(time.RFC3339Nano))
	l.through()
	if last := lastAct(l); last == nil || last.To != 30 {
		t.Errorf("the first message after that time is at 30, and the act is %+v", last)
	}
	for _, act := range [][]string{{"rewind", "orders/0", "--to", "start"}, {"rewind", "orders/1", "--to", "-7"}, {"evict", "orders/1"}} {
		l.executes(act...)
		l.through()
	}
	l.executes("pause", "orders/1")
	l.produce(5)
	l.awaits("the other partition continues", func() bool { return l.at(0).Next == epoch.Offset(l.produced) })
	var described struct {
		Partitions []struct {
			Lag   *int64
			Begin *int64 `json:"log_begin"`
			End   *int64 `json:"log_end"`
		}
	}
	l.reads(&described, "describe", "orders/1")
	if d := described.Partitions[0]; *d.Lag != 5 || *d.Begin != 0 || *d.End != 55 {
		t.Errorf("lag %d, from %d to %d", *d.Lag, *d.Begin, *d.End)
	}
	if a := l.does(exitTrouble, "check", "--max-lag", "4"); !strings.Contains(a.out, "lag of billing/orders/1") {
		t.Errorf("check says\n%s", a.out)
	}
	l.executes("resume", "orders/1")
	l.through()
	l.does(exitOK, "check", "--max-lag", "4")
	if a := l.run("doctor"); a.code != exitOK && a.code != exitTrouble || strings.Contains(a.out, "rebase") {
		t.Errorf("doctor: %d\n%s%s", a.code, a.out, a.errs)
	}
	l.audit(none)

	// The topic is another one.
	before := len(l.applied())
	_, err := admin.DeleteTopic(t.Context(), "orders")
	must(t, err)
	l.awaits("the topic is gone", func() bool {
		topics, err := admin.ListTopics(t.Context())
		must(t, err)
		return !topics.Has("orders")
	})
	create()
	l = workersOf(t, p, broker.Addr) // a producer of the old topic's knows it by its ID
	l.produce(8)
	l.work()
	l.awaits("both have halted", func() bool { return strings.Count(l.run("list").out, "halted") == 2 })
	if a := l.does(exitTrouble, "doctor"); !strings.Contains(a.out, "epochfence rebase billing/orders/0") {
		t.Errorf("doctor says\n%s", a.out)
	}
	l.does(exitError, "rewind", "orders/0", "--to", "start")
	l.executes("rebase", "--group", "billing", "--to", "start")
	l.through()
	if n := len(l.applied()); n != before+16 {
		t.Errorf("%d of the new topic's 16 messages were applied", n-before)
	}
	l.standsBehindAnOpenTransaction()
}
