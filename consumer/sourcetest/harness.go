package sourcetest

import (
	"testing"
	"time"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
)

// Harness creates what a history works with. Histories use topics and groups of their own, so that
// one broker may serve all of them. The methods report failures and clean up through t.
//
// Terms should be as short as the source allows: a frozen process's lease has to run out.
type Harness interface {
	// NewTopic creates a topic with empty partitions, under a new name, and returns the name.
	NewTopic(t testing.TB, partitions int32) string

	// Produce appends messages to a partition in the order given, with their
	// keys, values, headers and times. It returns when they can be read.
	Produce(t testing.TB, topic string, partition int32, ms ...consumer.Message)

	// NewSource returns one process's source: a member of the group, with connections and an
	// identity of its own. member is its name in failures. The topics need not exist.
	NewSource(t testing.TB, group string, topics []string, member string) consumer.Source
}

// Freezer can cut a process off from the source's side of the world.
type Freezer interface {
	// Freeze makes the source of a process neither hear nor say anything, as
	// if its network were cut or its process stopped, until thaw is called.
	// What the suite runs in own continues. The lease runs out in time.
	Freeze(t testing.TB, s consumer.Source) (thaw func())
}

// Retainer marks the harness of a source that moves only what has to move: a partition that stays
// with a member keeps its tenure when others join or leave.
type Retainer interface {
	// Retains does nothing.
	Retains()
}

// StaticMembers can start a process in the place of another, without the group
// noticing.
type StaticMembers interface {
	// NewStatic returns the source of a static member. A second one with the same group and
	// instance takes over the partitions at the same generation, and the first is fenced for good.
	NewStatic(t testing.TB, group string, topics []string, instance string) consumer.Source
}

// Regranter can take a partition from a process and grant it to the same one
// again under the same generation.
type Regranter interface {
	Regrant(t testing.TB, s consumer.Source, topic string, partition int32)
}

// Recreator can delete a topic and create it again, empty, under its old name.
type Recreator interface {
	RecreateTopic(t testing.TB, topic string, partitions int32)
}

// PartitionAdder can raise the number of a topic's partitions.
type PartitionAdder interface {
	AddPartitions(t testing.TB, topic string, total int32)
}

// Trimmer can delete the messages below an offset, as retention does. It returns
// when they are gone.
type Trimmer interface {
	Trim(t testing.TB, topic string, partition int32, begin epoch.Offset)
}

// SharedLog marks the harness of a source whose partitions share one log: trimming one trims all.
type SharedLog interface {
	// SharesLog does nothing.
	SharesLog()
}

// Deleter can delete one message inside the log, which leaves a gap that the source can explain.
type Deleter interface {
	Delete(t testing.TB, topic string, partition int32, offset epoch.Offset)
}

// Truncator can cut a log off above an offset, as an unclean election does. Offsets then repeat.
type Truncator interface {
	Truncate(t testing.TB, topic string, partition int32, end epoch.Offset)
}

// GroupDeleter can delete a group that has no live member, so that its generations
// start over.
type GroupDeleter interface {
	DeleteGroup(t testing.TB, group string)
}

// Positions can read and set the positions that the group has published, where lag tools look.
type Positions interface {
	// Position returns the position, and whether there is one.
	Position(t testing.TB, group, topic string, partition int32) (epoch.Offset, bool)

	// SetPosition publishes a position like another kind of consumer, even beside members.
	SetPosition(t testing.TB, group, topic string, partition int32, at epoch.Offset)
}

// Stalling is for the harness of a source whose leases run out on the machine's own clock. A
// machine that stands still for that long costs a history a tenure, and the source is not to blame.
// Such a history is played again, a few times at most.
type Stalling interface {
	// Stalled returns the longest time, since the harness was made, for which the broker has
	// answered nobody or this process has not run. A stall that continues counts until now.
	Stalled() time.Duration
}

// Carrier says what a log makes of a message that it cannot carry as it is, such as a log without
// keys, or one that orders headers itself. A harness without Carrier promises that key, value and
// headers come out as they went in, nil as nil and empty as empty, and the time to the millisecond.
// m has its topic and partition. If its time is zero, the log sets the time.
type Carrier interface {
	Carried(m consumer.Message) consumer.Message
}

// Timetable marks the harness of a source whose messages come from a clock and not from a log: each
// topic exists, messages have the time of the clock, and what is above the end has not come yet.
type Timetable interface {
	// ReadsClock does nothing.
	ReadsClock()
}

// Bounded says how many bytes of messages one source reads ahead at most, over all partitions.
type Bounded interface {
	Buffers() int
}
