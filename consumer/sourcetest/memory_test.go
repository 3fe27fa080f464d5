package sourcetest_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/memsource"
	"github.com/epochfence/epochfence/epoch"
)

// memory is the harness of memsource, which has every ability.
type memory struct {
	broker *memsource.Broker
	term   time.Duration
	logs   map[string]*memsource.Log
}

func newMemory(term time.Duration) *memory {
	return &memory{broker: memsource.NewBroker(), term: term, logs: map[string]*memsource.Log{}}
}

func (m *memory) NewTopic(_ testing.TB, partitions int32) string {
	name := fmt.Sprint("topic", len(m.logs))
	m.logs[name] = m.broker.Create(name, partitions)
	return name
}

func (m *memory) Produce(_ testing.TB, topic string, n int32, ms ...consumer.Message) {
	m.logs[topic].AppendMessages(n, ms...)
}

func (m *memory) NewSource(_ testing.TB, group string, topics []string, member string) consumer.Source {
	g := m.broker.Group(group, topics...)
	g.SetTerm(m.term)
	return g.Member(member)
}

func (m *memory) NewStatic(t testing.TB, group string, topics []string, instance string) consumer.Source {
	return m.NewSource(t, group, topics, instance)
}

func (m *memory) Freeze(_ testing.TB, s consumer.Source) (thaw func()) {
	member := s.(*memsource.Member)
	member.Freeze()
	return member.Thaw
}

func (m *memory) Retains() {}

func (m *memory) Regrant(_ testing.TB, s consumer.Source, topic string, n int32) {
	member := s.(*memsource.Member)
	g := member.Group()
	g.SetGeneration(g.Generation() - 1) // the grant adds one
	g.Lose(member, topic, n, nil)
}

func (m *memory) RecreateTopic(_ testing.TB, topic string, partitions int32) {
	m.logs[topic].Recreate(partitions)
}

func (m *memory) AddPartitions(_ testing.TB, topic string, total int32) {
	m.logs[topic].AddPartitions(total)
}

func (m *memory) Trim(_ testing.TB, topic string, n int32, begin epoch.Offset) {
	m.logs[topic].Trim(n, begin)
}

func (m *memory) Delete(_ testing.TB, topic string, n int32, offset epoch.Offset) {
	m.logs[topic].Delete(n, offset)
}

func (m *memory) Truncate(_ testing.TB, topic string, n int32, end epoch.Offset) {
	m.logs[topic].Truncate(n, end)
}

func (m *memory) DeleteGroup(_ testing.TB, group string) { m.broker.Group(group).Delete() }

func (m *memory) Position(_ testing.TB, group, topic string, n int32) (epoch.Offset, bool) {
	return m.broker.Group(group).Position(topic, n)
}

func (m *memory) SetPosition(_ testing.TB, group, topic string, n int32, at epoch.Offset) {
	m.broker.Group(group, topic).SetPosition(topic, n, at)
}

// Buffers: a member reads nothing ahead of the slice it yields.
func (m *memory) Buffers() int { return 1 << 20 }
