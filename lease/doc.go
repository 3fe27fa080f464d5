// Package lease decides which process of a group has which resource, on a [cas.Store].
//
//	member, err := lease.Open(ctx, store, lease.Options{
//		Group:     "billing",
//		Resources: map[string]int32{"orders": 16}, // orders/0 to orders/15
//	})
//	defer member.Close()
//
//	// Work that only the holder of the lease can commit, in a transaction of a sink's database.
//	err = lease.Do(ctx, member, sink, "renewals", renew)
//
//	// A lock: one process at a time makes the report.
//	h, err := member.Acquire(ctx, "nightly")
//	err = report(h.Context()) // which ends when the lease is lost
//	err = h.Release(ctx)
//
//	// Shares: each member works on its part of the resources.
//	err = member.Run(ctx, func(h *lease.Held) {
//		consume(h.Context(), h.Draining(), h.Number) // until one of the two ends
//	})
//
// The package hides how members register and share resources, how the death of a member is noticed,
// and what becomes of a write whose answer was lost. Callers see a [Member] of a group and a [Held]
// for each lease.
//
// docs/leases.md is the guide. It has the stores and what each promises, the steps of a takeover,
// the keys, what is lost in which outage, and how to see who has what.
//
// [Options.Observe] gets an [Event] for each step in the life of a lease. Package operate/stats
// counts them.
//
// # What a lease proves
//
// A lease decides which process may begin. It cannot stop a process that was paused and continues
// after another process has taken over. Where that matters, the effect must be checked in the write
// that commits it: [Do] does so in a transaction, and [Held.Generation] is a number for other
// checks.
//
// [Held.Confirm] proves that the lease was held at one moment: it replaces the lease's item on the
// version of the member's last write. It proves nothing about the time after. [Held.Context] and
// [Held.Err] are this process's own knowledge, which may be late.
//
// # How a lease is lost
//
// A member renews one item for all its leases, its registration, every third of TTL. [Held.Context]
// ends, with an [ErrLost] that has the reason, when
//
//   - no renewal was acknowledged for nine tenths of TTL ([ErrExpired]), counted on this process's
//     monotonic clock from when the last acknowledged renewal was sent;
//   - the registration or the lease's item was ended, replaced or deleted;
//   - the holder has called neither [Held.Progress] nor [Held.Confirm] for MaxStall, 1 min by
//     default ([ErrStalled]): work that takes longer calls Progress now and then;
//   - the resource was not given back within Term ([ErrDrainOverrun]);
//   - the member was closed ([ErrClosed]).
//
// An error of the store ends nothing by itself. A member that has lost its registration registers
// anew, under an id that was never used. A lost lease whose holder does not call [Held.Release]
// within TTL is released for it.
//
// # Expiry
//
// No wall clock is compared. A member counts as dead when its registration was the same item for
// TTL on the observer's monotonic clock. If the two members' TTLs differ, the longer one counts.
// The observer then ends the registration by a swap, which is refused if the member has renewed it
// meanwhile. Only then the leases that name this registration are free. A store that is a
// [cas.Expirer] may delete the registration sooner, with the same effect.
//
// Leases of a killed member are taken after at most 1.2 × TTL, or TTL plus one second if the store
// is a [cas.Watcher]. A member that lives for less than TTL takes over nothing: make TTL shorter
// than the time between two restarts.
//
// # Generations
//
// The generation of a lease is the number of its item, such as a revision of NATS or etcd. Where
// the store has no numbers it is a counter in the item's value, which stays there when the lease is
// released. It grows with each lease and each confirmation of the resource, as long as the store
// keeps what it has acknowledged. It may fall or repeat after a failover that lost writes, in a
// restored backup, and in a store that was emptied. A counter also begins anew after somebody has
// deleted the lease's item.
//
// # Requests of an idle member
//
// Each member writes its registration every third of TTL. A store that is no [cas.Watcher] is
// listed every tenth of TTL, and items whose value the list lacks are read when they have changed.
// A Watcher reports the changes instead, and is read again every four TTLs. Once a TTL, when its
// registration is gone, and before it acts on the absence of a key, the member asks the store for
// its facts. If they are [cas.ErrUnsuitable], it gives up all leases, and registers again once they
// are not.
package lease
