// Package epoch is the fencing protocol as values, without clock, I/O or goroutine. It imports the
// standard library alone.
//
// It hides when a claim replaces another one, which epoch the claim gets, and when an advance is
// refused. Callers see a [Fence], whose methods are these decisions, [TakeOver], which makes a
// process the owner of a partition, the interface [Sink], and the errors. [Fences] is the model that
// the suite in sinks/sinktest compares each sink with. docs/guarantees.md#the-rules has the rules by
// the numbers that comments cite.
//
// A [Fence] is a sink's record of one partition: which claim holds it, under
// which epoch, and the offset of the next message to apply. A process that applies
// messages does three things in ONE transaction of the sink's own database:
//
//  1. its effects,
//  2. the check that the fence still carries its claim and is at the offset it
//     started from,
//  3. moving the fence past the messages it applied.
//
// A process that was paused, cut off or restarted and wakes up without its
// partition fails the second step, and the first is rolled back with it.
//
// # The duties of a caller
//
// Package consumer does all of this. Code that drives a [Sink] by itself must:
//
//  1. Take the partition over ([TakeOver]): READ the fence, CHECK that it counts the offsets of your
//     log under your issuer of leases, CONFIRM with the source that the lease is still granted, SWAP
//     the claim in. If the check fails, stop and call an operator: the offsets mean something else
//     now, or another deployment uses the group. After [ErrStale], do it again.
//  2. Start reading at the Next of the fence that the swap returned.
//  3. Commit with an [Advance] for each partition ([Sink.Commit]). After [ErrStale], [ErrInDoubt] or
//     [ErrMoved], go back to 1: the source confirms nothing if another process has the lease. Never
//     guess, never resend.
//
// # Why a claim id and an epoch
//
// The generation that a lease carries (a group's generation, a key's revision) can repeat and
// restart: a static member swaps in at the same generation, a deleted group starts again at one. So
// the random [ClaimID], compared for equality only, decides who owns a partition. The [Epoch] is
// for other systems: it is strictly greater at every claim of a partition. It is the lease's
// generation if that is higher than every epoch before and than [Claim].Above. Otherwise it is the
// higher of these two plus one, such as after an operator's action or a second claim under one
// generation. [TakeOver] lowers a generation that is more than [MaxStep] above the last epoch.
package epoch
