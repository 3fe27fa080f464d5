// Package sourcetest is the suite that every [consumer.Source] must pass. A source's test calls
// [Run] with a function that makes a [Harness]:
//
//	func TestSource(t *testing.T) {
//		sourcetest.Run(t, func(t testing.TB) sourcetest.Harness { return newHarness(t) })
//	}
//
// Each subtest states a property of sources in words, and shows it with a small history: processes
// with names join, are granted partitions, confirm, read, freeze and leave. There are two kinds of
// histories. Most hold tenures by hand and check the contract of [consumer.Tenure] itself. The
// others run whole processes, through [consumer.Run] into a sink in memory, while members come, go,
// freeze and die. Then they check the effects: every message applied once, in order, none lost.
// Some are attacks, such as a stale writer or a static member that swaps in.
//
// A Harness has three methods. Anything else that a history does to the world, such as freezing a
// process or deleting records, has an interface of its own, which the harness may implement:
// [Freezer], [Trimmer] and so on. Histories whose interface is missing are not played, and named in
// the log.
//
// In every history the suite checks that no partition is granted while another live process still
// holds it, and that every Run ends when it is told to.
//
// A source whose leases run out on the machine's own clock loses some of them when the machine
// stands still. Its harness says so ([Stalling]), and a history that was in the middle of such a
// tenure is played again.
//
// [RunParallel] plays the histories in parallel, for a source whose histories mostly wait.
// [RunInBubble] plays them in testing/synctest bubbles, each in virtual time, for a source and a
// broker that work inside one.
package sourcetest
