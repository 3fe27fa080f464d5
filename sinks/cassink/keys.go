package cassink

import (
	"strconv"
	"strings"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/epoch"
)

// keys are the keys of a sink's own items.
type keys struct{ prefix string }

// has reports whether a key is one that the sink may use.
func (k keys) has(key string) bool { return strings.HasPrefix(key, cas.Join(k.prefix)+"/") }

func (k keys) fences() string { return cas.Join(k.prefix, "fence") + "/" }
func (k keys) fence(p epoch.Partition) string {
	return k.fences() + of(p)
}

// topic is the item that has decided where the partitions of a topic begin.
func (k keys) topic(group, topic string) string { return cas.Join(k.prefix, "topic", group, topic) }

func (k keys) log(p epoch.Partition) string { return k.logs() + of(p) }
func (k keys) logs() string                 { return cas.Join(k.prefix, "log") + "/" }

func (k keys) lists(p epoch.Partition) string { return cas.Join(k.prefix, "lists") + "/" + of(p) }

func (k keys) letters() string { return cas.Join(k.prefix, "dead") + "/" }
func (k keys) letter(p epoch.Partition, id int64) string {
	return k.lettersOf(p) + strconv.FormatInt(id, 10)
}

// part is the item that has a part of the content of a dead letter.
func (k keys) part(p epoch.Partition, id int64, n int) string {
	return cas.Join(k.prefix, "dead-parts") + "/" + of(p) + "/" + strconv.FormatInt(id, 10) + "/" + strconv.Itoa(n)
}

func (k keys) lettersOf(p epoch.Partition) string { return k.letters() + of(p) + "/" }

func (k keys) entries(p epoch.Partition) string {
	return cas.Join(k.prefix, "outbox") + "/" + of(p) + "/"
}
func (k keys) entry(p epoch.Partition, id int64) string {
	return k.entries(p) + strconv.FormatInt(id, 10)
}

// outboxActs is the item that has what operators did to entries.
func (k keys) outboxActs() string { return cas.Join(k.prefix, "outbox-acts") }

// requests is the item that owners of partitions poll.
func (k keys) requests() string { return cas.Join(k.prefix, "requests") }

func (k keys) processes() string         { return cas.Join(k.prefix, "process") + "/" }
func (k keys) process(run string) string { return k.processes() + cas.Join(run) }

func of(p epoch.Partition) string {
	return cas.Join(p.Group, p.Topic, strconv.Itoa(int(p.Number)))
}
