// Package sourcetest is the suite that every [consumer.Source] must pass. A
// source's test calls [Run] with a function that makes a [Harness]:
//
//	func TestSource(t *testing.T) {
//		sourcetest.Run(t, func(t testing.TB) sourcetest.Harness { return newHarness(t) })
//	}
//
// Each subtest is a claim about sources in words, proved by a small history:
// processes with names join, are granted partitions, confirm, read, freeze and
// leave. The histories come in two kinds. Most hold tenures by hand and look at
// the contract of [consumer.Tenure] itself. The others let whole processes run,
// through [consumer.Run] into a sink in memory, while members come, go, freeze
// and die, and then look at the effects: every message applied once, in order,
// none lost. Among those are the attacks of the design that begin at a source.
//
// A Harness has three methods. What else a history needs to do to the world, such
// as freezing a process or deleting records, is an interface of one method which
// the harness may have too: [Freezer], [Trimmer] and so on. Histories that need
// one which is missing are not played, and named in the log.
//
// In every history, whatever it is about, the suite watches that no partition is
// granted while another live process still holds it, and that every Run ends
// when it is told to.
//
// A source whose leases run out on the machine's own clock loses some of them when the
// machine stands still. Its harness says so ([Stalling]), and a history that was in the
// middle of such a tenure is played again.
//
// [RunParallel] plays the histories beside each other, for a source whose histories
// mostly wait. [RunInBubble] plays the same histories in testing/synctest bubbles, each in
// virtual time, for a source and a broker that work inside one.
package sourcetest
