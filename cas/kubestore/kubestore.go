// Package kubestore is a [cas.Store] in Lease objects of Kubernetes (coordination.k8s.io/v1). It is
// for leases: a value has at most 128 KiB, and each write is a write of the cluster's etcd.
//
// An item is a Lease, such as "inventory.orders.4711" for Options.Name "inventory" and the key
// "orders/4711". Its annotations have key, value, note and a random name of the write. Its spec
// stays empty. The Lease "inventory" names the set of items.
//
// The package hides the comparison: a JSON patch tests the resourceVersion and the random name,
// because a restored etcd repeats resource versions. Number is the resourceVersion (KEP-5504).
//
// A deletion is a patch with the state "deleted", and then a delete. If the second request fails, a
// Lease stays that is no item. This removes all of them:
//
//	kubectl delete leases -l epochfence.github.io/state=deleted
//
// The client needs this role in the namespace:
//
//	apiVersion: rbac.authorization.k8s.io/v1
//	kind: Role
//	metadata:
//	  name: epochfence
//	rules:
//	- apiGroups: [coordination.k8s.io]
//	  resources: [leases]
//	  verbs: [get, list, watch, create, patch, delete]
package kubestore

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	coordination "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"

	"github.com/epochfence/epochfence/cas"
)

// Options configure a [Store].
type Options struct {
	// Namespace is the namespace of the Leases. Required.
	Namespace string

	// Name begins the names of all Leases, and is the value of their label. Stores with different
	// names have different items. It must be a DNS label. Defaults to "epochfence".
	Name string
}

// Store is safe for concurrent use.
type Store struct {
	client    rest.Interface
	namespace string
	name      string
}

var _ cas.Watcher = (*Store)(nil)

// Labels and annotations, and the values of stateLabel.
const (
	domain = "epochfence.github.io/"

	storeLabel = domain + "store"
	stateLabel = domain + "state"

	keyAnnotation     = domain + "key"
	valueAnnotation   = domain + "value"
	noteAnnotation    = domain + "note"
	base64Annotation  = domain + "base64"
	versionAnnotation = domain + "version"

	live    = "live"
	deleted = "deleted"
	source  = "source"
)

// leastQPS is the least limit of requests a second that Open accepts.
const leastQPS = 50

// Open returns a store, such as
//
//	config.QPS = -1
//	clients, err := kubernetes.NewForConfig(config)
//	…
//	store, err := kubestore.Open(ctx, clients.CoordinationV1(), kubestore.Options{Namespace: "inventory"})
//
// client stays the caller's. The store does not let it repeat writes.
//
// Open returns an error if the client limits itself to less than 50 requests a second: renewals would
// wait behind the requests of a takeover. client-go's default is 5 ([rest.Config.QPS]).
//
// Requests share one HTTP/2 connection, and wait on it for up to 45 s if the server's machine is gone.
// By then, members of package lease have lost their leases. client-go reads
// HTTP2_READ_IDLE_TIMEOUT_SECONDS (30) and HTTP2_PING_TIMEOUT_SECONDS (15) from the environment.
// Their sum should be less than half a TTL.
func Open(ctx context.Context, client coordination.CoordinationV1Interface, o Options) (*Store, error) {
	s := &Store{client.RESTClient(), o.Namespace, cmp.Or(o.Name, "epochfence")}
	if o.Namespace == "" {
		return nil, errors.New("kubestore: Options.Namespace is empty")
	}
	if why := validation.IsDNS1123Label(s.name); len(why) > 0 {
		return nil, fmt.Errorf("kubestore: Options.Name %q is no DNS label: %s", s.name, strings.Join(why, "; "))
	}
	if limit := s.client.GetRateLimiter(); limit != nil && limit.QPS() < leastQPS {
		return nil, fmt.Errorf("kubestore: the client sends at most %v requests a second; set rest.Config.QPS to -1, or to %d or more", limit.QPS(), leastQPS)
	}
	if _, err := s.source(ctx); err != nil {
		err = ended(ctx, err)
		if apierrors.IsForbidden(err) {
			err = fmt.Errorf("%w; package kubestore's documentation has the role that it needs", err)
		}
		return nil, fmt.Errorf("kubestore: open namespace %q: %w", o.Namespace, err)
	}
	return s, nil
}

// A Lease has at most 256 KiB of annotations. Base64 makes four bytes of three.
var facts = cas.Facts{Numbers: true, ListsWhole: true, MaxKey: 1024, MaxValue: 128 << 10, MaxNote: 32 << 10}

// Facts implements [cas.Store].
func (s *Store) Facts(ctx context.Context) (cas.Facts, error) {
	uid, err := s.source(ctx)
	if err != nil {
		return cas.Facts{}, fmt.Errorf("kubestore: facts: %w", ended(ctx, err))
	}
	f := facts
	f.Source = "kubernetes:" + uid
	return f, nil
}

// source returns the UID of the Lease that names the items, and creates it if there is none.
func (s *Store) source(ctx context.Context) (uid string, err error) {
	for {
		lease, err := s.read(ctx, s.name)
		if err == nil && lease == nil {
			lease, err = s.create(ctx, s.name, source, nil)
		}
		switch {
		case errors.Is(err, cas.ErrConflict):
			continue
		case err != nil:
			return "", err
		case lease.Labels[storeLabel] != s.name || lease.Labels[stateLabel] != source:
			return "", fmt.Errorf("the lease %q was not written by this store; choose another Options.Name", s.name)
		}
		return string(lease.UID), nil
	}
}

// Get implements [cas.Store]. It reads what etcd has, not a cache.
func (s *Store) Get(ctx context.Context, key string) (cas.Item, error) {
	item, err := s.get(ctx, key)
	return item, failed("get", key, ended(ctx, err))
}

func (s *Store) get(ctx context.Context, key string) (cas.Item, error) {
	if err := facts.Check(key, nil, nil); err != nil {
		return cas.Item{}, err
	}
	lease, err := s.read(ctx, s.NameOf(key))
	if err != nil || lease == nil {
		return cas.Item{Key: key}, err
	}
	return s.item(lease)
}

func (s *Store) item(lease *coordinationv1.Lease) (cas.Item, error) {
	key, value, note, err := content(lease.Annotations)
	nonce, stamped := lease.Annotations[versionAnnotation]
	if err != nil || !stamped || s.NameOf(key) != lease.Name || lease.Labels[storeLabel] != s.name {
		foreign := fmt.Errorf("%w: the lease %q has the name of an item, and not its content; delete it, or choose another Options.Name", cas.ErrForeign, lease.Name)
		return cas.Item{}, errors.Join(foreign, err)
	}
	number, err := strconv.ParseInt(lease.ResourceVersion, 10, 64)
	if err != nil {
		return cas.Item{}, fmt.Errorf("its resourceVersion is no number: %w", err)
	}
	item := cas.Item{Key: key, Version: lease.ResourceVersion + "." + nonce, Number: number}
	if lease.Labels[stateLabel] == live {
		item.Live, item.Value, item.Note = true, value, note
	}
	return item, nil
}

// Swap implements [cas.Store].
func (s *Store) Swap(ctx context.Context, seen cas.Item, value, note []byte) (cas.Item, error) {
	item, err := s.swap(ctx, seen, value, note)
	return item, failed("swap", seen.Key, ended(ctx, err))
}

func (s *Store) swap(ctx context.Context, seen cas.Item, value, note []byte) (cas.Item, error) {
	if err := facts.Check(seen.Key, value, note); err != nil {
		return cas.Item{}, err
	}
	var lease *coordinationv1.Lease
	var err error
	if seen.Version == "" {
		lease, err = s.create(ctx, s.NameOf(seen.Key), live, annotations(seen.Key, value, note))
	} else {
		lease, err = s.patch(ctx, seen, live, annotations(seen.Key, value, note))
	}
	if err != nil {
		return cas.Item{}, err
	}
	return s.item(lease)
}

// Delete implements [cas.Store].
func (s *Store) Delete(ctx context.Context, seen cas.Item) error {
	return failed("delete", seen.Key, ended(ctx, s.delete(ctx, seen)))
}

// delete patches first, because a delete cannot test an annotation.
func (s *Store) delete(ctx context.Context, seen cas.Item) error {
	if err := facts.Check(seen.Key, nil, nil); err != nil {
		return err
	}
	if !seen.Live {
		return cas.ErrConflict
	}
	lease, err := s.patch(ctx, seen, deleted, annotations(seen.Key, nil, nil))
	if err != nil {
		return err
	}
	as := metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &lease.UID, ResourceVersion: &lease.ResourceVersion}}
	_ = s.request(http.MethodDelete).Name(lease.Name).Body(&as).Do(ctx).Error()
	return nil
}

// request begins a request that the client sends once. Without this, it repeats writes for which
// the server has said Retry-After, as it does when etcd has not answered in time.
func (s *Store) request(verb string) *rest.Request {
	return s.client.Verb(verb).Namespace(s.namespace).Resource("leases").MaxRetries(0)
}

// read returns the Lease with a name, or nil.
func (s *Store) read(ctx context.Context, name string) (*coordinationv1.Lease, error) {
	var lease coordinationv1.Lease
	err := s.client.Get().Namespace(s.namespace).Resource("leases").Name(name).Do(ctx).Into(&lease)
	if status, ok := answered(err); ok && status.Reason == metav1.StatusReasonNotFound {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return &lease, nil
}

func (s *Store) create(ctx context.Context, name, state string, a map[string]string) (*coordinationv1.Lease, error) {
	labels := map[string]string{storeLabel: s.name, stateLabel: state}
	body := coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: s.namespace, Labels: labels, Annotations: a}}
	var lease coordinationv1.Lease
	err := s.request(http.MethodPost).Body(&body).Do(ctx).Into(&lease)
	if status, ok := answered(err); ok && status.Reason == metav1.StatusReasonAlreadyExists {
		return nil, fmt.Errorf("%w: %w", cas.ErrConflict, err)
	}
	return &lease, full(err)
}

// operation is one of a JSON patch (RFC 6902).
type operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value string `json:"value"`
}

// path returns the path of a label or annotation. In a JSON pointer, "~1" is a slash.
func path(of, name string) string {
	return "/metadata/" + of + "/" + strings.ReplaceAll(name, "/", "~1")
}

// patch writes an item if it is as seen. It leaves other labels and annotations as they are.
func (s *Store) patch(ctx context.Context, seen cas.Item, state string, a map[string]string) (*coordinationv1.Lease, error) {
	resourceVersion, nonce, ok := strings.Cut(seen.Version, ".")
	if !ok {
		return nil, cas.ErrConflict // no version of this store
	}
	operations := []operation{
		{"test", "/metadata/resourceVersion", resourceVersion},
		{"test", path("annotations", versionAnnotation), nonce},
		{"add", path("labels", storeLabel), s.name},
		{"add", path("labels", stateLabel), state},
	}
	for name, value := range a {
		operations = append(operations, operation{"add", path("annotations", name), value})
	}
	body, err := json.Marshal(operations)
	if err != nil {
		return nil, err
	}
	var lease coordinationv1.Lease
	err = s.request(http.MethodPatch).Name(s.NameOf(seen.Key)).SetHeader("Content-Type", string(types.JSONPatchType)).Body(body).Do(ctx).Into(&lease)
	if isRefused(err) {
		return nil, fmt.Errorf("%w: %w", cas.ErrConflict, err)
	}
	return &lease, full(err)
}

// isRefused reports whether a patch was refused because of one of its tests. The server says Invalid
// then, without a kind and causes, which the errors of validation have.
func isRefused(err error) bool {
	status, ok := answered(err)
	if !ok {
		return false
	}
	switch status.Reason {
	case metav1.StatusReasonNotFound, metav1.StatusReasonConflict:
		return true
	case metav1.StatusReasonInvalid:
		return (status.Details == nil || status.Details.Kind == "" && len(status.Details.Causes) == 0) && !strings.HasPrefix(status.Message, "admission webhook")
	}
	return false
}

// full adds [cas.ErrFull] to the error of a write for which there is no room.
func full(err error) error {
	status, _ := answered(err)
	switch {
	case strings.Contains(status.Message, "exceeded quota"):
		return fmt.Errorf("%w: raise the limit of the namespace's ResourceQuota: %w", cas.ErrFull, err)
	case strings.Contains(status.Message, "database space exceeded"):
		return fmt.Errorf("%w: compact and defragment the cluster's etcd, then run etcdctl alarm disarm: %w", cas.ErrFull, err)
	}
	return err
}

// answered returns the answer of the API server. ok is false if it is not known to have answered, as
// for an answer of a load balancer.
func answered(err error) (status metav1.Status, ok bool) {
	var api apierrors.APIStatus
	if !errors.As(err, &api) || apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse) {
		return metav1.Status{}, false
	}
	return api.Status(), true
}

// ended adds the end of ctx to an error that does not match it.
func ended(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil && !errors.Is(err, ctx.Err()) && !errors.Is(err, cas.ErrConflict) {
		return fmt.Errorf("%w: %w", ctx.Err(), err)
	}
	return err
}

func failed(what, key string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("kubestore: %s %q: %w", what, key, err)
}
