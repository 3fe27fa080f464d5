package e2e_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/plain"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/kafkasource"
	"github.com/epochfence/epochfence/internal/servers/kafkatest"
)

// The real broker has its own ideas of names, sizes and bytes: all of it in one
// topic, read with the smallest buffer.
func TestRealOddNamesOddBytesAndAMessageLargerThanTheBuffer(t *testing.T) {
	t.Parallel()
	client := []kgo.Opt{kgo.SeedBrokers(kafkatest.Shared(t))}
	longTopic := (fmt.Sprintf("odd-%d-", time.Now().UnixNano()) + strings.Repeat("Topic._-9", 28))[:249]
	longGroup := string([]rune(`it's "our" group; drop table effects -- ` + longTopic + strings.Repeat("ü", 249))[:249])
	createTopic(t, client, longTopic, map[string]*string{"max.message.bytes": kadm.StringPtr("20000000")}, 1)

	record, odd := oddRecord()
	record.Topic = longTopic
	again := *record
	huge := noise(1, 8<<20)
	for _, r := range []*kgo.Record{record, {Topic: longTopic, Value: huge}, &again, {Topic: longTopic, Value: []byte("after")}} {
		produce(t, client, r)
	}
	d := newSQLite(t)
	source := newSource(t, func(o *kafkasource.Options) {
		o.Client, o.Group, o.Topics, o.BufferBytes = client, longGroup, []string{longTopic}, 1<<20
	})
	r := start(t, source, d.sink, consumer.Each(poisoned("value", d.handle)).OnFailure(d.sink.DeadLetter))
	r.advancedTo(part(longGroup, longTopic), 4)
	r.stop()
	none[consumer.Halted](r)
	if got, want := d.applied(), []effect{odd, {value: string(huge)}, {value: "after"}}; !slices.Equal(got, want) {
		t.Errorf("%d effects, which are not those of the messages", len(got))
	}
	if got, _ := d.dead(); got != odd {
		t.Errorf("put aside %q, want %q", got, odd)
	}
}

func TestRealWrongCredentialsAndAMissingTopicLoseNothing(t *testing.T) {
	t.Parallel()
	b := kafkatest.Start(t, kafkatest.Config{Users: map[string]string{"alice": "right"}})
	as := func(password string) []kgo.Opt {
		return []kgo.Opt{kgo.SeedBrokers(b.SASLAddr), kgo.SASL(plain.Auth{User: "alice", Pass: password}.AsMechanism())}
	}
	d := newSQLite(t)
	start(t, newSource(t, from(as("wrong"))), d.sink, consumer.Each(d.handle)).refused(soonEnough, "kafkasource: ", b.SASLAddr, "refuses the credentials")
	start(t, newSource(t, from(as("right"))), d.sink, consumer.Each(d.handle)).refused(soonEnough, "kafkasource: ", `topic "orders"`, "create it")

	createTopic(t, as("right"), topic, nil, 1)
	produce(t, as("right"), numbered(topic, 0, 20)...)
	r := start(t, newSource(t, from(as("right"))), d.sink, consumer.Each(d.handle))
	r.advancedTo(part(group, topic), 20)
	r.stop()
	wantValues(t, d.applied(), counted(20))
}

func createTopic(t *testing.T, client []kgo.Opt, topic string, configs map[string]*string, partitions int32) {
	t.Helper()
	cl, err := kgo.NewClient(client...)
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	if _, err := kadm.NewClient(cl).CreateTopic(t.Context(), partitions, 1, configs, topic); err != nil {
		t.Fatal(err)
	}
}
