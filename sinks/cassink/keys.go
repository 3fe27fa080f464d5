package cassink

import (
	"strconv"
	"strings"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/epoch"
)

// This file names the sink's own items. It leaves their contents to the files that write them.

// keys are the keys of a sink's own items, where epochfence is Options.Prefix:
//
//	epochfence/fence/GROUP/TOPIC/NUMBER          a fence: claim, epoch and position, as JSON
//	epochfence/topic/GROUP/TOPIC                 where each partition begins
//	epochfence/dead/GROUP/TOPIC/NUMBER/ID        a dead letter; what does not fit is in dead-parts
//	epochfence/log/GROUP/TOPIC/NUMBER            the last entries of the audit log
//	epochfence/lists/GROUP/TOPIC/NUMBER          ids of dead letters and outbox entries
//	epochfence/outbox/GROUP/TOPIC/NUMBER/ID      an outbox entry, with its body as the value
//	epochfence/outbox-acts                       the last operator actions on entries
//	epochfence/process/RUN                       a sign of life of a process
//	epochfence/requests                          what operators have asked for
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
