package kubestore_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/cas/kubestore"
	"github.com/epochfence/epochfence/internal/servers/servertest"
)

func TestReal(t *testing.T) {
	c := start(t)
	for name, test := range map[string]func(t *testing.T, c *cluster){
		"the role of the documentation is enough, and each of its verbs is needed": role,
		"a write that the server asks to repeat is not repeated":                   retryAfter,
		"what others write into a lease is seen, and what is not ours stays":       others,
		"a lease of another program is refused":                                    strangers,
		"a namespace that is not there or full is named":                           namespaces,
		"a lease that could not be removed is no item, and its key is used again":  leftovers,
	} {
		t.Run(name, func(t *testing.T) { test(t, c) })
	}
}

// roleOf returns the role of the documentation.
func roleOf(t *testing.T) *rbacv1.Role {
	t.Helper()
	page, err := os.ReadFile("kubestore.go")
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(page), "this role in the namespace:\n")
	text, _, _ := strings.Cut(after, "package kubestore")
	var role rbacv1.Role
	if err := yaml.UnmarshalStrict([]byte(strings.NewReplacer("//\t", "", "//\n", "\n").Replace(text)), &role); err != nil || len(role.Rules) != 1 {
		t.Fatalf("%+v, %v", role, err)
	}
	return &role
}

// everything is what members do.
func everything(ctx context.Context, s *kubestore.Store) error {
	item, err := s.Swap(ctx, cas.Item{Key: rand.Text()}, []byte("1"), nil)
	if err == nil {
		item, err = s.Swap(ctx, item, []byte("2"), nil)
	}
	if err == nil {
		item, err = s.Get(ctx, item.Key)
	}
	if err != nil {
		return err
	}
	for _, err := range s.List(ctx, "") {
		if err != nil {
			return err
		}
	}
	for got, err := range s.Watch(ctx, item.Key) {
		if err != nil {
			return err
		}
		if got.Key == "" {
			if err := s.Delete(ctx, item); err != nil {
				return err
			}
			continue
		}
		if !got.Live {
			return nil
		}
	}
	return errors.New("the watch has ended")
}

func role(t *testing.T, c *cluster) {
	namespace, admins := c.namespace(t), c.client(t, c.api.Address, admin)
	members := c.client(t, c.api.Address, member).CoordinationV1()
	options := kubestore.Options{Namespace: namespace}
	_, err := kubestore.Open(t.Context(), members, options)
	if err == nil || !strings.Contains(err.Error(), `User "member" cannot get`) || !strings.Contains(err.Error(), "documentation has the role") {
		t.Errorf("without a role: %v", err)
	}
	role := roleOf(t)
	all := role.Rules[0].Verbs
	role, err = admins.RbacV1().Roles(namespace).Create(t.Context(), role, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = admins.RbacV1().RoleBindings(namespace).Create(t.Context(), &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: role.Name}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: role.Name},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: "member"}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var s *kubestore.Store
	servertest.Await(t, "the role allows to open the store", func() bool {
		s, err = kubestore.Open(t.Context(), members, options)
		return err == nil
	})
	if err := everything(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	for _, verb := range all {
		role.Rules[0].Verbs = slices.DeleteFunc(slices.Clone(all), func(v string) bool { return v == verb })
		if role, err = admins.RbacV1().Roles(namespace).Update(t.Context(), role, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		if verb == "delete" { // without it, Leases of deleted items stay
			continue
		}
		servertest.Await(t, verb+" is missed", func() bool {
			err := everything(t.Context(), s)
			return err != nil && strings.Contains(err.Error(), "cannot "+verb)
		})
	}
}

// retryAfter has the answer to a write replaced by what the server says when etcd did not answer it in
// time.
func retryAfter(t *testing.T, c *cluster) {
	var writes atomic.Int32
	pool := c.authority.Pool()
	relay := &httputil.ReverseProxy{
		Rewrite:   func(r *httputil.ProxyRequest) { r.SetURL(&url.URL{Scheme: "https", Host: c.api.Address}) },
		Transport: transport(pool),
		ModifyResponse: func(r *http.Response) error {
			if r.Request.Method != http.MethodGet {
				writes.Add(1)
				r.StatusCode, r.Status = http.StatusInternalServerError, "500 Internal Server Error"
				r.Header.Set("Retry-After", "1")
			}
			return nil
		},
	}
	server := httptest.NewServer(relay)
	t.Cleanup(server.Close)
	namespace := c.namespace(t)
	witness := open(t, c.client(t, c.api.Address, admin), namespace)
	item, err := witness.Swap(t.Context(), cas.Item{Key: "orders"}, []byte("1"), nil)
	if err != nil {
		t.Fatal(err)
	}
	clients, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL, BearerToken: admin, QPS: -1})
	if err != nil {
		t.Fatal(err)
	}
	s := open(t, clients, namespace)
	_, created := s.Swap(t.Context(), cas.Item{Key: "payments"}, nil, nil)
	_, swapped := s.Swap(t.Context(), item, []byte("2"), nil)
	for what, err := range map[string]error{"create": created, "swap": swapped} {
		if err == nil || errors.Is(err, cas.ErrConflict) {
			t.Errorf("%s: err = %v, want one that leaves the outcome open", what, err)
		}
	}
	now, err := witness.Get(t.Context(), item.Key)
	if err != nil || string(now.Value) != "2" {
		t.Fatalf("%+v, %v", now, err)
	}
	if err := s.Delete(t.Context(), now); err == nil || errors.Is(err, cas.ErrConflict) {
		t.Errorf("delete: err = %v, want one that leaves the outcome open", err)
	}
	if n := writes.Load(); n != 3 {
		t.Errorf("%d writes were sent, want 3", n)
	}
	// The client itself would have repeated it.
	before := writes.Load()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	_, err = clients.CoordinationV1().Leases(namespace).Patch(ctx, "epochfence.payments", types.MergePatchType, []byte(`{}`), metav1.PatchOptions{})
	if n := writes.Load() - before; n < 2 {
		t.Errorf("client-go has sent a write %d times (%v): is MaxRetries(0) of use?", n, err)
	}
}

func others(t *testing.T, c *cluster) {
	namespace, clients := c.namespace(t), c.client(t, c.api.Address, admin)
	s, leases := open(t, clients, namespace), clients.CoordinationV1().Leases(namespace)
	seen, err := s.Swap(t.Context(), cas.Item{Key: "orders/1"}, []byte("1"), nil)
	if err != nil {
		t.Fatal(err)
	}
	change := `{"metadata":{"labels":{"team":"billing"},"annotations":{"note":"theirs","epochfence.github.io/value":"edited"}}}`
	if _, err := leases.Patch(t.Context(), s.NameOf(seen.Key), types.MergePatchType, []byte(change), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Swap(t.Context(), seen, []byte("2"), nil); !errors.Is(err, cas.ErrConflict) {
		t.Errorf("a lease that somebody has edited was replaced: %v", err)
	}
	if seen, err = s.Get(t.Context(), seen.Key); err != nil || string(seen.Value) != "edited" {
		t.Fatalf("%+v, %v", seen, err)
	}
	if seen, err = s.Swap(t.Context(), seen, []byte("2"), nil); err != nil {
		t.Fatal(err)
	}
	lease, err := leases.Get(t.Context(), s.NameOf(seen.Key), metav1.GetOptions{})
	if err != nil || lease.Labels["team"] != "billing" || lease.Annotations["note"] != "theirs" {
		t.Errorf("%+v, %v", lease, err)
	}
}

func strangers(t *testing.T, c *cluster) {
	namespace, clients := c.namespace(t), c.client(t, c.api.Address, admin)
	leases := clients.CoordinationV1().Leases(namespace)
	create := func(name string, labels map[string]string) {
		t.Helper()
		lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}
		if _, err := leases.Create(t.Context(), lease, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	s := open(t, clients, namespace)
	create("epochfence.orders", nil)
	create("epochfence.payments", map[string]string{"epochfence.github.io/store": "epochfence", "epochfence.github.io/state": "live"})
	for _, key := range []string{"orders", "payments"} {
		if item, err := s.Get(t.Context(), key); !errors.Is(err, cas.ErrForeign) {
			t.Errorf("%+v, %v", item, err)
		}
		if _, err := s.Swap(t.Context(), cas.Item{Key: key}, nil, nil); !errors.Is(err, cas.ErrConflict) {
			t.Errorf("it was overwritten as if it were absent: %v", err)
		}
	}
	for item, err := range s.List(t.Context(), "") {
		t.Errorf("listed: %+v, %v", item, err)
	}
	create("theirs", nil)
	_, err := kubestore.Open(t.Context(), clients.CoordinationV1(), kubestore.Options{Namespace: namespace, Name: "theirs"})
	if err == nil || !strings.Contains(err.Error(), `"theirs" was not written by this store; choose another Options.Name`) {
		t.Errorf("err = %v", err)
	}
}

func namespaces(t *testing.T, c *cluster) {
	clients := c.client(t, c.api.Address, admin)
	_, err := kubestore.Open(t.Context(), clients.CoordinationV1(), kubestore.Options{Namespace: "nowhere"})
	if err == nil || !strings.Contains(err.Error(), `namespaces "nowhere" not found`) {
		t.Errorf("err = %v", err)
	}
	namespace := c.namespace(t)
	s := open(t, clients, namespace)
	quota := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "leases"}}
	quota.Spec.Hard = corev1.ResourceList{"count/leases.coordination.k8s.io": resource.MustParse("1")}
	if quota, err = clients.CoreV1().ResourceQuotas(namespace).Create(t.Context(), quota, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	quota.Status = corev1.ResourceQuotaStatus{Hard: quota.Spec.Hard, Used: quota.Spec.Hard} // as the controller manager does
	if _, err := clients.CoreV1().ResourceQuotas(namespace).UpdateStatus(t.Context(), quota, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	n := 0
	servertest.Await(t, "the namespace is full", func() bool {
		n++
		_, err = s.Swap(t.Context(), cas.Item{Key: fmt.Sprint("orders/", n)}, nil, nil)
		return err != nil
	})
	if !errors.Is(err, cas.ErrFull) || !strings.Contains(err.Error(), "ResourceQuota") {
		t.Errorf("err = %v", err)
	}
}

// leftovers deletes items as a user who may not delete.
func leftovers(t *testing.T, c *cluster) {
	namespace, clients := c.namespace(t), c.client(t, c.api.Address, admin)
	keeps := c.client(t, c.api.Address, admin, func(config *rest.Config) {
		config.Wrap(func(next http.RoundTripper) http.RoundTripper { return refusing{next} })
	})
	s, leases := open(t, keeps, namespace), clients.CoordinationV1().Leases(namespace)
	first, err := s.Swap(t.Context(), cas.Item{Key: "orders"}, []byte("1"), []byte("note"))
	if err == nil {
		err = s.Delete(t.Context(), first)
	}
	if err != nil {
		t.Fatal(err)
	}
	gone, err := s.Get(t.Context(), "orders")
	if err != nil || gone.Live || gone.Version == "" || len(gone.Value)+len(gone.Note) > 0 {
		t.Fatalf("%+v, %v", gone, err)
	}
	for item, err := range s.List(t.Context(), "") {
		t.Errorf("listed: %+v, %v", item, err)
	}
	if _, err := s.Swap(t.Context(), first, []byte("2"), nil); !errors.Is(err, cas.ErrConflict) {
		t.Errorf("a deleted item was replaced: %v", err)
	}
	again, err := s.Swap(t.Context(), gone, []byte("2"), nil)
	if err != nil || again.Number <= gone.Number {
		t.Fatalf("%+v, %v", again, err)
	}
	if err := open(t, clients, namespace).Delete(t.Context(), again); err != nil {
		t.Fatal(err)
	}
	all, err := leases.List(t.Context(), metav1.ListOptions{})
	if err != nil || len(all.Items) != 1 || all.Items[0].Name != "epochfence" {
		t.Errorf("%+v, %v", all, err)
	}
}

// refusing lets no DELETE through.
type refusing struct{ next http.RoundTripper }

func (r refusing) WrappedRoundTripper() http.RoundTripper { return r.next }

func (r refusing) RoundTrip(q *http.Request) (*http.Response, error) {
	if q.Method == http.MethodDelete {
		return nil, errors.New("cut off")
	}
	return r.next.RoundTrip(q)
}

func TestRealAnEtcdThatIsFullIsNamed(t *testing.T) {
	c := start(t, "--quota-backend-bytes=8388608")
	s := open(t, c.client(t, c.api.Address, admin), c.namespace(t))
	large := []byte(strings.Repeat("v", 128<<10))
	for n := range 200 {
		key := fmt.Sprint("orders/", n)
		_, err := s.Swap(t.Context(), cas.Item{Key: key}, large, nil)
		switch {
		case errors.Is(err, cas.ErrFull) && strings.Contains(err.Error(), "alarm disarm"):
			if item, err := s.Get(t.Context(), key); err != nil || item.Live {
				t.Errorf("it was written: %v", err)
			}
			return
		case err != nil:
			t.Fatal(err)
		}
	}
	t.Error("etcd is never full")
}

// The server ends each watch after one or two seconds. An item is deleted between two watches.
func TestRealAWatchGoesOnWhenTheServerEndsIt(t *testing.T) {
	c := start(t, "--min-request-timeout=1")
	namespace := c.namespace(t)
	other := open(t, c.client(t, c.api.Address, admin), namespace)
	there := map[string]cas.Item{}
	for _, key := range []string{"orders/1", "orders/2", "payments/1"} {
		item, err := other.Swap(t.Context(), cas.Item{Key: key}, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		there[key] = item
	}
	var lists atomic.Int32
	s := open(t, c.client(t, c.api.Address, admin, func(config *rest.Config) {
		config.Wrap(func(next http.RoundTripper) http.RoundTripper {
			return before{next, func(q *http.Request) {
				if !q.URL.Query().Has("limit") || lists.Add(1) != 2 {
					return
				}
				for _, key := range []string{"orders/1", "payments/1"} {
					if err := other.Delete(q.Context(), there[key]); err != nil {
						t.Error(err)
					}
				}
			}}
		})
	}), namespace)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	shown := map[string]cas.Item{}
	for item, err := range s.Watch(ctx, "orders/") {
		if err != nil {
			t.Fatal(err)
		}
		shown[item.Key] = item
		switch {
		case string(item.Value) == "x":
			cancel()
		case item.Key == "orders/1" && !item.Live:
			if item.Number <= there[item.Key].Number {
				t.Errorf("the deletion is shown as %+v", item)
			}
			if _, err := other.Swap(t.Context(), there["orders/2"], []byte("x"), nil); err != nil {
				t.Error(err)
			}
		}
		if ctx.Err() != nil {
			break
		}
	}
	if _, has := shown["payments/1"]; has || shown["orders/1"].Live || string(shown["orders/2"].Value) != "x" {
		t.Errorf("shown: %+v", shown)
	}
}

// before calls do before each request.
type before struct {
	next http.RoundTripper
	do   func(*http.Request)
}

func (b before) WrappedRoundTripper() http.RoundTripper { return b.next }

func (b before) RoundTrip(q *http.Request) (*http.Response, error) {
	b.do(q)
	return b.next.RoundTrip(q)
}

func TestWhatAStoreCannotHaveIsRefusedAtOpen(t *testing.T) {
	for remedy, of := range map[string]struct {
		qps float32
		o   kubestore.Options
	}{
		"rest.Config.QPS to -1, or to 50 or more": {0, kubestore.Options{Namespace: "items"}},
		"at most 49 requests a second":            {49, kubestore.Options{Namespace: "items"}},
		"Options.Namespace":                       {50, kubestore.Options{}},
		"Options.Name":                            {-1, kubestore.Options{Namespace: "items", Name: "Not a label"}},
	} {
		clients, err := kubernetes.NewForConfig(&rest.Config{Host: "127.0.0.1:1", QPS: of.qps, Burst: 10})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := kubestore.Open(t.Context(), clients.CoordinationV1(), of.o); err == nil || !strings.Contains(err.Error(), remedy) {
			t.Errorf("err = %v, want %s", err, remedy)
		}
	}
}
