package main

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
)

// runLeader is client-go's leader election, as in its example. In the safe form the process ends when
// it no longer leads, as it does there.
func runLeader(ctx context.Context, p *pod) error {
	client, err := kubernetes.NewForConfig(&rest.Config{Host: p.Leases, ContentConfig: rest.ContentConfig{ContentType: "application/json"}})
	if err != nil {
		return err
	}
	leaderelection.RunOrDie(ctx, leaderelection.LeaderElectionConfig{
		Lock: &resourcelock.LeaseLock{
			LeaseMeta:  meta.ObjectMeta{Name: "invoices", Namespace: "default"},
			Client:     client.CoordinationV1(),
			LockConfig: resourcelock.ResourceLockConfig{Identity: p.Name},
		},
		ReleaseOnCancel: true,
		LeaseDuration:   5 * time.Second, // 15 s, 10 s and 2 s by default
		RenewDeadline:   3 * time.Second,
		RetryPeriod:     time.Second,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(ctx context.Context) { p.lead(ctx) },
			OnStoppedLeading: func() {
				klog.Infof("leader lost: %s", p.Name)
				if p.safe() {
					klog.Flush()
					os.Exit(0)
				}
			},
		},
	})
	if !p.safe() {
		<-ctx.Done() // the work that is going on
	}
	return nil
}

// lead runs the job at each tick.
func (p *pod) lead(ctx context.Context) {
	for {
		next := time.Now().Truncate(period).Add(period)
		select {
		case <-time.After(time.Until(next)):
		case <-ctx.Done():
			return
		}
		if err := p.job(ctx, now(), ""); err != nil {
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
	answer(w, http.StatusOK, has)
}

func refuse(w http.ResponseWriter, code int, reason meta.StatusReason) {
	answer(w, code, meta.Status{TypeMeta: meta.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: meta.StatusFailure, Reason: reason, Code: int32(code)})
}

func answer(w http.ResponseWriter, code int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(body)
}
