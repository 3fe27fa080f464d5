package e2e_test

import (
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/plain"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/kafkasource"
	"github.com/epochfence/epochfence/internal/servers/freeport"
)

func TestABrokerThatCannotBeReachedAtStartIsAnErrorAndNothingIsLost(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: it takes seconds")
	}
	t.Parallel()
	c, d := newCluster(t, kfake.SeedTopics(1, topic)), newSQLite(t)
	produce(t, reach(c), numbered(topic, 0, 20)...)

	ports, err := freeport.Take(1)
	if err != nil {
		t.Fatal(err)
	}
	nobody := fmt.Sprintf("127.0.0.1:%d", ports[0])
	unreachable := func(within time.Duration) *running {
		source := newSource(t, func(o *kafkasource.Options) {
			o.Client, o.StartTimeout = []kgo.Opt{kgo.SeedBrokers(nobody)}, within
		})
		return start(t, source, d.sink, consumer.Each(d.handle))
	}
	unreachable(6*time.Second).refused(patience, "kafkasource: no broker", nobody, "6s", "connection refused")
	l, err := net.Listen("tcp", nobody)
	if err != nil { // takes connections and never answers
		t.Fatal(err)
	}
	defer l.Close()
	unreachable(2*time.Second).refused(patience, "kafkasource: no broker", nobody)

	r := start(t, newSource(t, from(reach(c))), d.sink, consumer.Each(d.handle))
	r.advancedTo(part(group, topic), 20)
	r.stop()
	wantValues(t, d.applied(), counted(20))
}

func TestABrokerThatIsGoneForAWhileLosesAndDoublesNothing(t *testing.T) {
	t.Parallel()
	c, d := newCluster(t, kfake.SeedTopics(1, topic)), newSQLite(t)
	produce(t, reach(c), numbered(topic, 0, 10)...)
	l := &link{}
	r := start(t, newSource(t, from(append(reach(c), kgo.Dialer(l.dial)))), d.sink, consumer.Each(d.handle))
	r.advancedTo(part(group, topic), 10)
	l.cut()
	produce(t, reach(c), numbered(topic, 10, 10)...)
	l.fix()
	r.advancedTo(part(group, topic), 20)
	r.stop()
	wantValues(t, d.applied(), counted(20))
}

func TestWrongKafkaCredentialsAreAnErrorAndNothingIsLost(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: it takes seconds")
	}
	t.Parallel()
	c := newCluster(t, kfake.SeedTopics(1, topic), kfake.EnableSASL(), kfake.Superuser("PLAIN", "alice", "right"))
	d := newSQLite(t)
	as := func(password string) []kgo.Opt {
		return append(reach(c), kgo.SASL(plain.Auth{User: "alice", Pass: password}.AsMechanism()))
	}
	produce(t, as("right"), numbered(topic, 0, 20)...)

	r := start(t, newSource(t, from(as("wrong"))), d.sink, consumer.Each(d.handle))
	r.refused(patience, "kafkasource: ", c.ListenAddrs()[0], "credentials")
	none[consumer.Claimed](r)
	r = start(t, newSource(t, from(reach(c))), d.sink, consumer.Each(d.handle))
	r.refused(patience, "kafkasource: ", c.ListenAddrs()[0], "SASL")

	r = start(t, newSource(t, from(as("right"))), d.sink, consumer.Each(d.handle))
	r.advancedTo(part(group, topic), 20)
	r.stop()
	wantValues(t, d.applied(), counted(20))
}

func TestAMissingTopicIsAnErrorAndNothingIsLost(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: it takes seconds")
	}
	t.Parallel()
	c, d := newCluster(t, kfake.SeedTopics(1, "payments")), newSQLite(t)
	produce(t, reach(c), numbered("payments", 0, 20)...)
	both := func(o *kafkasource.Options) { o.Client, o.Topics = reach(c), []string{"payments", topic} }

	start(t, newSource(t, both), d.sink, consumer.Each(d.handle)).refused(patience, "kafkasource: ", `topic "orders"`, "create it")

	admin, err := kgo.NewClient(reach(c)...)
	if err != nil {
		t.Fatal(err)
	}
	defer admin.Close()
	if _, err := kadm.NewClient(admin).CreateTopic(t.Context(), 1, 1, nil, topic); err != nil {
		t.Fatal(err)
	}
	r := start(t, newSource(t, both), d.sink, consumer.Each(d.handle))
	r.advancedTo(part(group, "payments"), 20)
	produce(t, reach(c), numbered(topic, 20, 1)...)
	r.advancedTo(part(group, topic), 1)
	r.stop()
	wantValues(t, d.applied(), counted(21))
}
