// Package leaderlock lets client-go's leader election, and with it controller-runtime, run on any
// store that has a driver of package cas, and commits what the leader writes only if no other
// process has led and claimed since.
//
//	lock, err := leaderlock.New(member, "controller")
//	leaderelection.RunOrDie(ctx, leaderelection.LeaderElectionConfig{
//		Lock: lock, LeaseDuration: 15 * time.Second, RenewDeadline: 10 * time.Second, RetryPeriod: 2 * time.Second, …
//	})
//	manager, err := ctrl.NewManager(config, ctrl.Options{LeaderElection: true, LeaderElectionResourceLockInterface: lock})
//
//	// In the leader:
//	err = leaderlock.Do(ctx, lock, sink, work)
//
// Leader election decides who may begin. It cannot stop a leader that was paused and continues after
// another one was elected, as client-go's own page says. The check is in [Do], where the effect
// commits.
//
// # Times
//
// A member renews its lease in the background, and other members take the lease after
// [lease.Options].TTL. client-go's LeaseDuration decides nothing for them. TTL must be at least one
// and a half times LeaseDuration, because a renewal may be a third of TTL old when the store fails.
// LeaseDuration must be at least RetryPeriod plus RenewDeadline. Then a leader that cannot renew stops
// before another one can lead. With client-go's defaults of 15 s, 2 s and 10 s, TTL must be at least 22.5 s.
// [Lock.Create] and [Lock.Update] return an error if TTL is shorter.
//
// The member also renews for an elector that hangs, for [lease.Options].MaxStall. One call of [Do] may
// take as long.
//
// # Terms
//
// A term is the time from election until client-go says "stopped leading". Each term has one lease.
// If the lease is lost, the term has none any more, although client-go only notices after up to
// RenewDeadline. Work that must end with the lease uses the context of [Lock.Held], or that of [Do].
package leaderlock

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/lease"
	"github.com/epochfence/epochfence/lease/internal/claims"
)

// ErrNotLeading is returned by [Do] and [Lock.Held] when this process does not lead.
var ErrNotLeading = errors.New("this process does not lead")

// Lock is a [resourcelock.Interface] whose lock is a lease. Use it with one LeaderElector at a time.
// [Do] and [Lock.Held] are safe for concurrent use.
type Lock struct {
	member   *lease.Member
	resource string

	mu   sync.Mutex
	term *term // the latest; nil if its lease was released
}

var _ resourcelock.Interface = (*Lock)(nil)

// term is the time from election until the elector stops.
type term struct {
	*claims.Lease
	duration time.Duration // client-go's LeaseDuration
	over     bool          // the elector has stopped
}

// New returns a Lock on a resource of a member's group. The name must not be in
// [lease.Options].Resources. The member stays the caller's: close it after the elector has stopped.
func New(member *lease.Member, resource string) (*Lock, error) {
	if _, shared := member.Resources[resource]; shared || resource == "" {
		return nil, fmt.Errorf("leaderlock: lock on %q: want a name that lease.Options.Resources does not have", resource)
	}
	return &Lock{member: member, resource: resource}, nil
}

// Identity returns [lease.Member.Owner], which no other process has.
func (l *Lock) Identity() string { return l.member.Owner() }

// Describe names the lease.
func (l *Lock) Describe() string { return l.member.Group + "/" + l.resource }

// Get returns the record of the holder, as the member last saw it, without a request. It returns a
// NotFound if nobody has the lease, and a [lease.ErrLost] if this process has lost it and has not
// stopped leading yet. LeaderTransitions is the generation of the lease. It grows with each Update, so
// it does not count transitions.
func (l *Lock) Get(context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	t, now := l.current(), metav1.Now()
	h, held := l.member.Holder(l.resource)
	var lost error
	if t != nil && !t.over {
		lost = t.Err()
	}
	switch {
	case lost != nil && (!held || h.Owner == l.Identity()):
		// client-go would go on with the old term under a new lease.
		return nil, nil, fmt.Errorf("leaderlock: get %s: %w", l.Describe(), lost)
	case !held:
		return nil, nil, apierrors.NewNotFound(schema.GroupResource{Group: "epochfence", Resource: "lease"}, l.Describe())
	}
	r := &resourcelock.LeaderElectionRecord{
		HolderIdentity:       h.Owner,
		LeaseDurationSeconds: int(math.Ceil(l.member.TTL.Seconds())),
		AcquireTime:          metav1.NewTime(h.Since),
		RenewTime:            now,
		LeaderTransitions:    int(min(h.Generation, math.MaxInt32)), // a number of 32 bits in Kubernetes
	}
	// client-go takes a record whose bytes stay the same for LeaseDurationSeconds for that of a dead
	// leader. Here a lease that is listed has not ended.
	raw, err := json.Marshal(struct {
		*resourcelock.LeaderElectionRecord
		Seen time.Time
	}{r, now.Time})
	return r, raw, err
}

func (l *Lock) current() *term {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.term == nil {
		return nil
	}
	t := *l.term
	return &t
}

// Create takes the lease, or confirms it if this process leads. It does not wait.
func (l *Lock) Create(ctx context.Context, r resourcelock.LeaderElectionRecord) error {
	return l.named("create", l.write(ctx, r))
}

// Update takes the lease, or confirms it if this process leads. If r has no HolderIdentity, it releases
// the lease.
func (l *Lock) Update(ctx context.Context, r resourcelock.LeaderElectionRecord) error {
	if r.HolderIdentity == "" {
		return l.named("release", l.release(ctx))
	}
	return l.named("update", l.write(ctx, r))
}

func (l *Lock) named(what string, err error) error {
	if err != nil {
		return fmt.Errorf("leaderlock: %s %s: %w", what, l.Describe(), err)
	}
	return nil
}

func (l *Lock) write(ctx context.Context, r resourcelock.LeaderElectionRecord) error {
	duration := time.Duration(r.LeaseDurationSeconds) * time.Second
	if least := duration * 3 / 2; l.member.TTL < least {
		return fmt.Errorf("the TTL of the lease is %v, and client-go's LeaseDuration %v: want a lease.Options.TTL of at least %v, or a shorter LeaseDuration", l.member.TTL, duration, least)
	}
	if t := l.current(); t != nil && !t.over {
		_, err := t.Confirm(ctx)
		return err
	}
	if err := l.release(ctx); err != nil { // of the term before, which client-go did not give back
		return err
	}
	h, err := l.member.TryAcquire(l.resource)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.term = &term{Lease: claims.New(h), duration: duration}
	return nil
}

func (l *Lock) release(ctx context.Context) error {
	l.mu.Lock()
	t := l.term
	l.term = nil
	l.mu.Unlock()
	if t == nil {
		return nil
	}
	return t.Release(ctx)
}

// RecordEvent ends the term when client-go has stopped leading. If client-go has not released the
// lease, it is released after LeaseDuration, as client-go expects of a lock that is not renewed. A new
// term of this process ends it sooner.
func (l *Lock) RecordEvent(event string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if event != stopped || l.term == nil || l.term.over {
		return
	}
	l.term.over = true
	l.term.ReleaseAfter(l.term.duration)
}

// stopped is client-go's event at the end of each term.
const stopped = "stopped leading"

// Held returns the lease of this process's term. Its context ends when the lease is lost, and not
// when client-go stops leading without a release. It returns an [ErrNotLeading] outside a term.
func (l *Lock) Held() (*lease.Held, error) {
	t, err := l.leading()
	if err != nil {
		return nil, l.named("lease of", err)
	}
	return t.Held, nil
}

func (l *Lock) leading() (*term, error) {
	if t := l.current(); t != nil && !t.over {
		return t, nil
	}
	return nil, fmt.Errorf("%w: call it within OnStartedLeading", ErrNotLeading)
}

// Do runs work in a transaction of a sink. It commits the transaction only if no other process has led
// and claimed since this process was elected. A leader that was paused until then changes nothing.
//
// The first call of a term claims the resource in the sink, as [lease.Claim] does. The context of work
// ends when the lease is lost. The sink must be a pointer, or of another type that can be compared.
//
// Errors are those of [lease.Claim] and [lease.Claimed.Do]. They match [lease.ErrLost] if the lease was
// lost, and [ErrNotLeading] outside a term.
func Do[TX any](ctx context.Context, l *Lock, sink epoch.Sink[TX], work lease.Work[TX]) error {
	t, err := l.leading()
	if err == nil {
		err = claims.Do(ctx, t.Lease, sink, work)
	}
	return l.named("do", err)
}
