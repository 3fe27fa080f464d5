// Package schedule runs jobs at the times of cron expressions, and commits each tick once at most:
// a [consumer.Source] whose partitions are jobs, and whose messages are ticks.
//
//	jobs, err := schedule.New(schedule.Options{Store: store, Group: "billing"},
//		schedule.Job[pgsink.Tx]{Name: "invoices", Cron: "30 2 * * *", Zone: "Europe/Berlin", Do: makeInvoices},
//		schedule.Job[pgsink.Tx]{Name: "reindex", Cron: "@hourly", Step: reindexSome},
//	)
//	err = consumer.Run(ctx, jobs, sink, jobs.Handlers(), consumer.Options{MaxBatch: 1, Committers: 4})
//
// All processes of a group run this code. Each job is a resource of package lease: one process at a
// time has it, and the jobs are assigned to the processes evenly. What the job writes through its
// transaction, and the position after its tick, commit together with the check that this process
// still owns the job. A process that was frozen in a job, and wakes up when another process has
// done it, changes nothing.
//
// The package hides when a job's next tick is, which late ticks are run, how a tick is written as
// an offset, and where a long job continues. Callers see a [Schedule], which is a source and the
// handlers for it, and a [Tick] for each run. Package lease decides which process has which job,
// and package consumer runs the transactions.
//
// docs/leases.md#jobs is the guide.
//
// # Ticks
//
// The offset of a tick is its time in microseconds since 1970. The position of a job is the time up
// to which its ticks are done. So everything that operators do with partitions works for jobs:
// pause, skip, rewind, dead letters and their replay, the audit log, the status page and metrics. A
// job begins with its first tick after its fence was created.
//
// The times of ticks come from the clocks of the processes. If the store is a [cas.Clock], a
// process whose clock differs from the store's by more than a minute gives its jobs to others: see
// [ErrClock]. No tick runs twice, because the position is past it. A position that is more than a
// day ahead of the clock halts the job with an [ErrAhead].
//
// Operators cannot set a position between two steps. A position within a run is rounded up, and the
// rest of the run is left out.
//
// # Transactions
//
// [Job.Do] is one transaction. It must end within consumer.Options.BatchTimeout, which is 6.75 s
// with the default Options.LeaseTTL. [Job.Step] is called for one transaction after another until
// it reports that the job is done. Each step commits with its number, and a new owner continues
// after the last step that was committed. consumer.Options.MaxBatch should be 1, so that no two
// jobs share a transaction. consumer.Options.Committers limits how many jobs work at a time in one
// process, beside as many that have just failed. The others wait.
//
// A failed Do or Step is tried again like any message: see consumer.Options.MaxAttempts and
// consumer.Handlers.OnFailure. If OnFailure takes a step, the rest of that run is left out.
//
// # Late ticks
//
// [Job.CatchUp], [Job.MaxLate] and [Job.Overrun] say what becomes of ticks that no process has run
// in time. By default the last one is run and the others are not. A warning has the number of ticks
// that are left out. Those that came while the job was at work are logged at level Debug.
//
// # Sinks
//
// [consumer.Run] requires [epoch.Transactional] by default. For a sink that is only
// [epoch.PerItem], set consumer.Options.Guarantee, CatchUpAll and no MaxLate: a tick that has
// failed may have changed some of its items, so it must be run again.
package schedule
