// Package gocronlock gives each job of gocron's schedulers to one of them by a lease, and commits the
// work of a job only if no other process has taken the job over and claimed it since.
//
//	locker := gocronlock.New(member, gocronlock.Options{})
//	scheduler, err := gocron.NewScheduler(gocron.WithDistributedLocker(locker))
//	_, err = scheduler.NewJob(gocron.CronJob("0 3 * * *", false), gocron.NewTask(func(ctx context.Context) error {
//		run, err := locker.Run("renewals")
//		if err != nil {
//			return err
//		}
//		return gocronlock.Do(ctx, run, sink, renew)
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
	"sync/atomic"
	"time"

	"github.com/go-co-op/gocron/v2"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/lease"
	"github.com/epochfence/epochfence/lease/internal/claims"
)

// ErrNotLocked is returned by [Locker.Run] when no run of the job has a lease in this process, and by
// [Do] and [Run.Held] when the run is over.
var ErrNotLocked = errors.New("this run of the job does not have the lease in this process")

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
	runs map[string]*Run // by the job's name
}

var _ gocron.Locker = (*Locker)(nil)

// New returns a Locker that takes the leases of a member. The member stays the caller's: close it
// after the scheduler was shut down.
func New(member *lease.Member, o Options) *Locker {
	if o.Splay == 0 {
		o.Splay = defaultSplay
	}
	return &Locker{member: member, splay: o.Splay, runs: map[string]*Run{}}
}

// Run is one run of a job, with its lease. It is safe for concurrent use. A goroutine that outlives its
// run cannot commit under the lease of the next one.
type Run struct {
	lease *claims.Lease
	of    *Locker
	job   string
	begun time.Time
	over  atomic.Bool
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
	r := &Run{lease: claims.New(h), of: l, job: job, begun: begun}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.runs[job] = r
	return r, nil
}

// Unlock releases the lease, once Splay has passed since the start of the run. It returns an error
// that matches [lease.ErrLost] if the lease was lost during the run. gocron ignores the error: the
// task has it from Do.
func (r *Run) Unlock(ctx context.Context) error {
	r.over.Store(true)
	r.of.mu.Lock()
	delete(r.of.runs, r.job) // before the lease is free for the next run
	r.of.mu.Unlock()
	err := r.lease.Err()
	if left := r.of.splay - time.Since(r.begun); err == nil && left > 0 {
		r.lease.ReleaseAfter(left)
		return nil
	}
	// gocron's context has ended if the scheduler was shut down.
	if err = errors.Join(err, r.lease.Release(context.WithoutCancel(ctx))); err != nil {
		return fmt.Errorf("gocronlock: unlock job %q: %w", r.job, err)
	}
	return nil
}

// Run returns the run of a job that is under way in this process. Call it at the beginning of the task,
// and pass the Run to the goroutines that the task starts: later, it may return another run. job is the
// name that the job has by [gocron.WithName].
func (l *Locker) Run(job string) (*Run, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if r := l.runs[job]; r != nil {
		return r, nil
	}
	return nil, fmt.Errorf("gocronlock: job %q: %w: call Run within the task, give the job this name by gocron.WithName, and the scheduler this Locker by gocron.WithDistributedLocker", job, ErrNotLocked)
}

// Held returns the lease of the run. Its context ends when the lease is lost. The context that gocron
// gives to the task does not.
func (r *Run) Held() (*lease.Held, error) {
	if r.over.Load() {
		return nil, fmt.Errorf("gocronlock: lease of job %q: %w: its task has returned", r.job, ErrNotLocked)
	}
	return r.lease.Held, nil
}

// Do runs work in a transaction of a sink. It commits the transaction only if no other process has
// taken the job over and claimed it since this run began. A process that was paused until then changes
// nothing.
//
// The first call of a run claims the job in the sink, as [lease.Claim] does. A long job calls Do for
// each of its steps. The context of work ends when the lease is lost. The sink must be a pointer, or
// of another type that can be compared.
//
// Errors are those of [lease.Claim] and [lease.Claimed.Do]. They match [lease.ErrLost] if the lease was
// lost, and [ErrNotLocked] if the task of the run has returned.
func Do[TX any](ctx context.Context, r *Run, sink epoch.Sink[TX], work lease.Work[TX]) error {
	_, err := r.Held()
	if err != nil {
		return err
	}
	if err = claims.Do(ctx, r.lease, sink, work); err != nil {
		return fmt.Errorf("gocronlock: job %q: %w", r.job, err)
	}
	return nil
}
