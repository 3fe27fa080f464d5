// Package operate lists and changes what a sink has while its consumers run: list
// fences, read the audit log, set positions, pause, evict, replay dead letters. The
// command epochfence and the status page are built on it.
//
//	op, err := pgsink.OpenOperator(ctx, pool, pgsink.Options{})
//	…
//	seen, err := op.Partition(ctx, p)
//	…
//	fence, err := op.Act(ctx, NewAct(ActPause, seen.Fence, "anna", "the warehouse is being moved"))
//
// Everything that writes compares what was seen with what is there, goes through a
// claim where it concerns a fence, and is in the audit log when it is done. An owner
// that is alive continues by itself from where it was told.
package operate
