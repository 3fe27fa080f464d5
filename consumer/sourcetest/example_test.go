package sourcetest_test

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/memsource"
	"github.com/epochfence/epochfence/consumer/sourcetest"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/sinks/memsink"
)

// Broker is what the suite needs to know of a source: how to make topics, messages
// and members. Here it is that of memsource; yours reaches a broker of your own.
type Broker struct {
	broker *memsource.Broker
	logs   map[string]*memsource.Log
}

func NewBroker() *Broker {
	return &Broker{broker: memsource.NewBroker(), logs: map[string]*memsource.Log{}}
}

func (b *Broker) NewTopic(_ testing.TB, partitions int32) string {
	name := fmt.Sprint("topic-", len(b.logs))
	b.logs[name] = b.broker.Create(name, partitions)
	return name
}

func (b *Broker) Produce(_ testing.TB, topic string, partition int32, ms ...consumer.Message) {
	b.logs[topic].AppendMessages(partition, ms...)
}

func (b *Broker) NewSource(_ testing.TB, group string, topics []string, member string) consumer.Source {
	g := b.broker.Group(group, topics...)
	g.SetTerm(2 * time.Second) // short, as histories wait for leases to run out, and longer than a busy machine stalls
	return g.Member(member)
}

// Freeze is one of the abilities that a harness may have, here a [sourcetest.Freezer]:
// each lets the suite play more histories.
func (b *Broker) Freeze(_ testing.TB, s consumer.Source) (thaw func()) {
	m := s.(*memsource.Member)
	m.Freeze()
	return m.Thaw
}

// testSource is the test of the source. Yours is called TestSource.
func testSource(t *testing.T) {
	sourcetest.RunParallel(t, func(testing.TB) sourcetest.Harness { return NewBroker() })
}

// A harness, the test that runs the suite with it (testSource), and a consumer
// that reads from the source.
func Example() {
	var t testing.TB // of a test
	b := NewBroker()
	topic := b.NewTopic(t, 1)
	b.Produce(t, topic, 0, consumer.Message{Value: []byte("a chair")}, consumer.Message{Value: []byte("a table")})

	sink := memsink.New()
	ctx, stop := context.WithCancel(context.Background())
	reserve := func(_ context.Context, tx *memsink.Tx, m consumer.Message, _ epoch.Epoch) error {
		tx.Append("reserved", string(m.Value))
		return nil
	}
	err := consumer.Run(ctx, b.NewSource(t, "billing", []string{topic}, "a"), sink, consumer.Each(reserve), consumer.Options{
		Logger: slog.New(slog.DiscardHandler),
		Observe: func(e consumer.Event) {
			if a, ok := e.(consumer.Advanced); ok && a.To == 2 {
				stop()
			}
		},
	})
	fmt.Println(sink.List("reserved"), err)
	// Output: [a chair a table] <nil>
}
