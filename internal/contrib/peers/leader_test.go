package peers

import (
	"context"
	"encoding/json"
	"net/http"
	"os"
	"path"
	"strconv"
	"sync"
	"time"

	coordination "k8s.io/api/coordination/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/epochfence/epochfence/lease"
	"github.com/epochfence/epochfence/lease/leaderlock"
	"github.com/epochfence/epochfence/sinks/pgsink"
)

// Of client-go's defaults of 15 s, 10 s and 2 s, a third.
const leaseDuration, renewDeadline, retryPeriod = 5 * time.Second, 3 * time.Second, time.Second

// runLeader is client-go's leader election, as in its example: the process ends when it no longer leads.
func runLeader(ctx context.Context, p *pod) error {
	lock, err := p.leaseLock()
	if err != nil {
		return err
	}
	p.elect(ctx, lock, func(ctx context.Context, tick string) error { return p.job(ctx, tick, nil) })
	return nil
}

// runLeaderFenced has our lock.
func runLeaderFenced(ctx context.Context, p *pod) error {
	lock, job, err := p.fencedLock(ctx)
	if err != nil {
		return err
	}
	p.elect(ctx, lock, job)
	return nil
}

func (p *pod) elect(ctx context.Context, lock resourcelock.Interface, do job) {
	leaderelection.RunOrDie(ctx, leaderelection.LeaderElectionConfig{
		Lock:            lock,
		ReleaseOnCancel: true,
		LeaseDuration:   leaseDuration,
		RenewDeadline:   renewDeadline,
		RetryPeriod:     retryPeriod,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(ctx context.Context) { atTicks(ctx, do) },
			OnStoppedLeading: func() {
				klog.Infof("leader lost: %s", p.Name)
				klog.Flush()
				os.Exit(0)
			},
		},
	})
}

// runController is a manager of controller-runtime with client-go's lock.
func runController(ctx context.Context, p *pod) error {
	lock, err := p.leaseLock()
	if err != nil {
		return err
	}
	return p.manage(ctx, lock, func(ctx context.Context, tick string) error { return p.job(ctx, tick, nil) })
}

// runControllerFenced is one with ours.
func runControllerFenced(ctx context.Context, p *pod) error {
	lock, job, err := p.fencedLock(ctx)
	if err != nil {
		return err
	}
	return p.manage(ctx, lock, job)
}

func (p *pod) manage(ctx context.Context, lock resourcelock.Interface, do job) error {
	log.SetLogger(klog.Background())
	duration, deadline, retry := leaseDuration, renewDeadline, retryPeriod
	m, err := manager.New(&rest.Config{Host: p.Leases}, manager.Options{
		LeaderElection: true, LeaderElectionResourceLockInterface: lock,
		LeaseDuration: &duration, RenewDeadline: &deadline, RetryPeriod: &retry,
		Metrics: server.Options{BindAddress: "0"},
	})
	if err != nil {
		return err
	}
	leader := manager.RunnableFunc(func(ctx context.Context) error { // runs while this process leads
		atTicks(ctx, do)
		return nil
	})
	if err := m.Add(leader); err != nil {
		return err
	}
	return m.Start(ctx)
}

func (p *pod) leaseLock() (resourcelock.Interface, error) {
	client, err := kubernetes.NewForConfig(&rest.Config{Host: p.Leases, ContentConfig: rest.ContentConfig{ContentType: "application/json"}})
	if err != nil {
		return nil, err
	}
	return &resourcelock.LeaseLock{
		LeaseMeta:  meta.ObjectMeta{Name: "invoices", Namespace: "default"},
		Client:     client.CoordinationV1(),
		LockConfig: resourcelock.ResourceLockConfig{Identity: p.Name},
	}, nil
}

func (p *pod) fencedLock(ctx context.Context) (resourcelock.Interface, job, error) {
	member, sink, err := p.member(ctx)
	if err != nil {
		return nil, nil, err
	}
	l, err := leaderlock.New(member, "invoices")
	return l, func(ctx context.Context, tick string) error {
		return p.fencedJob(ctx, tick, func(ctx context.Context, work lease.Work[pgsink.Tx]) error { return leaderlock.Do(ctx, l, sink, work) })
	}, err
}

type job func(ctx context.Context, tick string) error

// atTicks runs the job at each tick.
func atTicks(ctx context.Context, do job) {
	for {
		next := time.Now().Truncate(period).Add(period)
		select {
		case <-time.After(time.Until(next)):
		case <-ctx.Done():
			return
		}
		if err := do(ctx, now()); err != nil {
			klog.Errorf("job: %v", err)
		}
	}
}

// leaseAPI is as much of the API server as leader election needs: leases, whose updates conflict
// unless they name the version that they replace.
type leaseAPI struct {
	mu     sync.Mutex
	leases map[string]*coordination.Lease
	last   int
}

func newLeaseAPI() http.Handler { return &leaseAPI{leases: map[string]*coordination.Lease{}} }

func (a *leaseAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	var given coordination.Lease
	if r.Method != http.MethodGet {
		if err := json.NewDecoder(r.Body).Decode(&given); err != nil {
			refuse(w, http.StatusBadRequest, meta.StatusReasonBadRequest)
			return
		}
	}
	name := path.Base(r.URL.Path)
	if r.Method == http.MethodPost {
		name = given.Name
	}
	has := a.leases[name]
	switch {
	case r.Method == http.MethodPost && has != nil:
		refuse(w, http.StatusConflict, meta.StatusReasonAlreadyExists)
		return
	case r.Method != http.MethodPost && has == nil:
		refuse(w, http.StatusNotFound, meta.StatusReasonNotFound)
		return
	case r.Method == http.MethodPut && given.ResourceVersion != has.ResourceVersion:
		refuse(w, http.StatusConflict, meta.StatusReasonConflict)
		return
	case r.Method != http.MethodGet:
		a.last++
		given.ResourceVersion = strconv.Itoa(a.last)
		given.TypeMeta = meta.TypeMeta{APIVersion: "coordination.k8s.io/v1", Kind: "Lease"}
		a.leases[name] = &given
		has = &given
	}
	respond(w, http.StatusOK, has)
}

func refuse(w http.ResponseWriter, code int, reason meta.StatusReason) {
	respond(w, code, meta.Status{TypeMeta: meta.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: meta.StatusFailure, Reason: reason, Code: int32(code)})
}

func respond(w http.ResponseWriter, code int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(body)
}
