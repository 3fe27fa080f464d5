// Package sinktest is the suite that every [epoch.Sink] must pass. A sink's
// test calls [Run] with a function that makes an empty [Database]:
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
// Each subtest is a claim about sinks in words, proved by a small history:
// processes with names read, claim and commit in an order that is written down,
// and afterwards each message's effect must be there once. The histories are
// the attacks of the design (a stale writer, a static member that swaps in at the
// same generation, a lost acknowledgement, …), then the rules one by one, then
// two that are played at random: one step by step against [epoch.Fences], which
// says what each step must answer, and one by many processes at a time.
//
// A sink on a database where one open transaction does not lock out the rest
// calls [RunUnblocked] too.
//
// [Idioms] plays what people write in handlers, through consumer.Run, in each way in which a
// sink lets them send statements.
//
// The histories at random are rapid's (pgregory.net/rapid): -rapid.checks sets
// how many, and a failure prints the seed that plays it again.
package sinktest
