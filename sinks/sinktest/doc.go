// Package sinktest is the suite that every [epoch.Sink] must pass. A sink's test calls [Run] with a
// function that makes an empty [Database]:
//
//	func TestSink(t *testing.T) {
//		sinktest.Run(t, func(t testing.TB) sinktest.Database[*mysink.Tx] {
//			db := emptyDatabase(t)
//			return sinktest.Database[*mysink.Tx]{
//				Open:   func(t testing.TB) epoch.Sink[*mysink.Tx] { return mysink.Open(db) },
//				Append: func(ctx context.Context, tx *mysink.Tx, list, value string) error { … },
//				List:   func(ctx context.Context, list string) ([]string, error) { … },
//			}
//		})
//	}
//
// Each subtest states a property of sinks in words, and shows it with a small history. Named
// processes read, claim and commit in a fixed order. Afterwards each message's effect must be there
// once. First come the attacks of the design (a stale writer, a static member that swaps in at the
// same generation, a lost acknowledgement, …), then the rules one by one. Two histories
// are random: one goes step by step against [epoch.Fences], which predicts each answer, and one has
// many concurrent processes.
//
// If an open transaction does not lock the whole database, the sink's test also calls
// [RunUnblocked]. If the sink is an operate.Ledger, the test also calls [RunOperated].
//
// [Idioms] runs common handler code through consumer.Run, for each way in which a sink lets
// handlers send statements.
//
// The random histories use rapid (pgregory.net/rapid): -rapid.checks sets their number, and a
// failure prints the seed that repeats it.
package sinktest
