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
// The package hides what makes an operator's change safe beside running consumers. Every operation
// that writes compares what the operator saw with the sink's state now, and writes an entry of the
// audit log. An operation on a fence is a claim: a live owner is
// refused, claims again, and continues from the position that the operator has set.
//
// [Planner] plans an action in an operator's words: what it does, and which messages are applied again or
// never. [Plan.CarryOut] also moves a partition whose owner is working.
//
// Sinks implement [Ledger] and [Admin]; the rules about which change is possible and what it records
// are here, once for all of them. What a halt means is in
// package remedies. The command and the page parse what an operator types, and show plans and outcomes.
package operate
