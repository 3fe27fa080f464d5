// Package gocronlock lets schedulers of gocron take turns by leases, and commits the work of a job
// only if no other process has taken the job over and claimed it since.
//
//	locker := gocronlock.New(member, gocronlock.Options{})
//	scheduler, err := gocron.NewScheduler(gocron.WithDistributedLocker(locker))
//	_, err = scheduler.NewJob(gocron.CronJob("0 3 * * *", false), gocron.NewTask(func(ctx context.Context) error {
//		return gocronlock.Do(ctx, locker, sink, "renewals", renew)
//	}), gocron.WithName("renewals"))
//
// [Locker] alone is a lock, which cannot stop a process that was paused and continues after another
// one has taken over. The check is in [Do], where the effect commits.
//
// One run of a job is under way at a time, in all processes together. Ticks during a run are skipped. A
// run loses its lease if it neither calls [Do] nor [lease.Held.Progress] for [lease.Options].MaxStall, 1 min
// by default, and one call of Do may take as long. A failed run is not repeated, so the next one must find
// out what is left to do.
//
// The schedulers do not know of each other's ticks. Use jobs whose ticks are those of the clock, such as
// [gocron.CronJob]. A [gocron.DurationJob] counts from the start of its process, so each process runs
// it at times of its own.
package gocronlock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/go-co-op/gocron/v2"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/claims"
	"github.com/epochfence/epochfence/lease"
)

// ErrNotLocked is returned by [Do] and [Locker.Held] when no run of the job has a lease in this
// process.
var ErrNotLocked = errors.New("no run of this job has the lease in this process")

// Options configure a [Locker].
type Options struct {
	// Splay is the time for which a run keeps its lease at least, counted from its start. The
	// schedulers of other processes skip the tick if they reach it within Splay. So Splay must be
	// longer than the difference between the clocks of two processes. A run that starts within Splay after the last
	// one is skipped too, so the ticks of a job must be further apart. If Splay is negative, a lease
	// is released when its run ends. Defaults to 500 ms.
	Splay time.Duration
}

const defaultSplay = 500 * time.Millisecond

// Locker is a [gocron.Locker] whose locks are leases. The resource of a job's lease is its name. It
// is safe for concurrent use.
type Locker struct {
	member *lease.Member
	splay  time.Duration

	mu   sync.Mutex
	runs map[string]*run // by the job's name
}

var _ gocron.Locker = (*Locker)(nil)

// New returns a Locker that takes the leases of a member. The member stays the caller's: close it
// after the scheduler was shut down.
func New(member *lease.Member, o Options) *Locker {
	if o.Splay == 0 {
		o.Splay = defaultSplay
	}
	return &Locker{member: member, splay: o.Splay, runs: map[string]*run{}}
}

// run is the lease of one run of a job, from Lock to Unlock.
type run struct {
	*claims.Lease
	of    *Locker
	job   string
	begun time.Time
}

// Lock takes the lease of a job and does not wait. gocron skips the run after an error. The error
// matches [lease.ErrHeld] if another process, or an earlier run in this one, has the lease. In a store
// that is no cas.Watcher, Lock may return it for up to a tenth of TTL after a release. The error matches
// [lease.ErrUnanswered] if the store does not answer.
func (l *Locker) Lock(ctx context.Context, job string) (gocron.Lock, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("gocronlock: lock job %q: %w", job, err)
	}
	begun := time.Now()
	h, err := l.member.TryAcquire(job)
	if err != nil {
		return nil, fmt.Errorf("gocronlock: lock job %q: %w", job, err)
	}
	r := &run{Lease: claims.New(h), of: l, job: job, begun: begun}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.runs[job] = r
	return r, nil
}

// Unlock releases the lease, once Splay has passed since the start of the run. It returns an error
// that matches [lease.ErrLost] if the lease was lost during the run. gocron ignores the error: the
// task has it from Do.
func (r *run) Unlock(ctx context.Context) error {
	r.of.mu.Lock()
	delete(r.of.runs, r.job) // before the lease is free for the next run
	r.of.mu.Unlock()
	err := r.Err()
	if left := r.of.splay - time.Since(r.begun); err == nil && left > 0 {
		r.ReleaseAfter(left)
		return nil
	}
	// gocron's context has ended if the scheduler was shut down.
	if err = errors.Join(err, r.Release(context.WithoutCancel(ctx))); err != nil {
		return fmt.Errorf("gocronlock: unlock job %q: %w", r.job, err)
	}
	return nil
}

// Held returns the lease of the run of a job that is under way in this process. Its context ends when
// the lease is lost. The context that gocron gives to the task does not. job is the name that the job
// has by [gocron.WithName].
func (l *Locker) Held(job string) (*lease.Held, error) {
	r, err := l.run(job)
	if err != nil {
		return nil, fmt.Errorf("gocronlock: lease of job %q: %w", job, err)
	}
	return r.Held, nil
}

func (l *Locker) run(job string) (*run, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if r := l.runs[job]; r != nil {
		return r, nil
	}
	return nil, fmt.Errorf("%w: call it within the task, give the job this name by gocron.WithName, and the scheduler this Locker by gocron.WithDistributedLocker", ErrNotLocked)
}

// Do runs work in a transaction of a sink. It commits the transaction only if no other process has
// taken the job over and claimed it since this run began. A process that was paused until then changes
// nothing. Call it within the task of a job. job is the name that the job has by [gocron.WithName].
//
// The first call of a run claims the job in the sink, as [lease.Claim] does. A long job calls Do for
// each of its steps. The context of work ends when the lease is lost. The sink must be a pointer, or
// of another type that can be compared.
//
// Errors are those of [lease.Claim] and [lease.Claimed.Do]. They match [lease.ErrLost] if the lease was
// lost, and [ErrNotLocked] if no run has one.
func Do[TX any](ctx context.Context, l *Locker, sink epoch.Sink[TX], job string, work lease.Work[TX]) error {
	r, err := l.run(job)
	if err == nil {
		err = claims.Do(ctx, r.Lease, sink, work)
	}
	if err != nil {
		return fmt.Errorf("gocronlock: job %q: %w", job, err)
	}
	return nil
}
