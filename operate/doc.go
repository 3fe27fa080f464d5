// Package operate lists and changes the state of a sink while its consumers run: list fences, read
// the audit log, set positions, pause, evict, replay dead letters. The command epochfence and the
// status page are built on it.
//
//	op, err := pgsink.OpenOperator(ctx, pool, pgsink.Options{})
//	…
//	seen, err := op.Partition(ctx, p)
//	…
//	fence, err := op.Act(ctx, operate.NewAct(operate.ActPause, seen.Fence, "anna", "the warehouse is being moved"))
//
// Every operation that writes compares what the operator saw with the sink's state now, and writes
// an entry of the audit log. Operations of an outbox write to the history of the outbox. An operation
// on a fence is a claim. A live owner continues by itself, from the position that the operator has
// set.
package operate
