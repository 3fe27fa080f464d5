// Package memsource is a [consumer.Source] in memory, for unit tests: topics
// that are filled by hand, and a group whose takeovers can be scripted.
//
//	log := memsource.New("orders", 4)
//	log.Append(0, "first", "second")
//	err := memsource.Apply(ctx, log, sink, consumer.Each(handle))
//
// [Apply] is for handlers, on the database that they write to. What follows is for
// takeovers.
//
// A [Broker] holds topics and groups, a [Log] is one topic, a [Group] leases the
// partitions of its topics to its members, and a [Member] is one process: the
// Source to hand to consumer.Run. Several members in one test are several
// processes with one broker.
//
// Left to itself a group shares its partitions out fairly among the members
// that run, keeps what it can where it is, and drains a partition before it
// moves. After [Group.Script] it does nothing by itself, and the test grants,
// drains and takes away: with or without the holder's knowledge, under any
// generation.
//
// Nothing is written anywhere and nothing is shared between brokers. All of it
// works inside a testing/synctest bubble: the goroutines and timers a member
// needs are gone when its Run returns. Everything is safe for concurrent use.
// Names that do not exist and numbers out of range are mistakes of the test, and
// panic.
package memsource
