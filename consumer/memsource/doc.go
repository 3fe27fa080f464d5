// Package memsource is a [consumer.Source] in memory, for unit tests: topics that are filled by
// hand, and a group whose takeovers can be scripted.
//
//	log := memsource.New("orders", 4)
//	log.Append(0, "first", "second")
//	err := memsource.Apply(ctx, log, sink, consumer.Each(handle))
//
// [Apply] tests handlers on the database that they write to. The rest of the package tests
// takeovers.
//
// A [Broker] holds topics and groups. A [Log] is one topic. A [Group] leases the partitions of its
// topics to its members. A [Member] is one process: the Source to hand to consumer.Run. Several
// members in one test are several processes with one broker.
//
// By default a group assigns its partitions fairly to the members that run, moves as few as
// possible, and drains a partition before it moves. After [Group.Script] it does nothing by itself.
// The test then grants, drains and takes away, with or without the holder's knowledge, under any
// generation.
//
// Logs and groups are only in memory, and brokers share nothing. All of it works inside a
// testing/synctest bubble: the goroutines and timers of a member are gone when its Run returns.
// Everything is safe for concurrent use. Unknown names and numbers out of range are mistakes of the
// test, and panic.
package memsource
