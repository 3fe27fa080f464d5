package kubestore_test

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/cas/castest"
	"github.com/epochfence/epochfence/cas/guard/guardtest"
	"github.com/epochfence/epochfence/cas/kubestore"
	"github.com/epochfence/epochfence/internal/servers/freeport"
	"github.com/epochfence/epochfence/internal/servers/servertest"
	"github.com/epochfence/epochfence/internal/servers/tlstest"
	"github.com/epochfence/epochfence/lease/leasetest"
)

// binariesEnv is the directory of etcd and kube-apiserver. `make long WHAT=kubernetes` builds them.
const binariesEnv = "EPOCHFENCE_KUBERNETES"

// Tokens of the users that the API server knows.
const (
	admin  = "the-admins-token"
	member = "the-members-token"
)

// cluster is a kube-apiserver and its etcd.
type cluster struct {
	etcd, api *servertest.Server
	authority *tlstest.Authority
	named     atomic.Int32 // namespaces
}

// start starts both with further flags, of which those that begin with --quota are etcd's.
func start(t testing.TB, flags ...string) *cluster {
	t.Helper()
	if testing.Short() {
		t.Skip("a server is not for -short")
	}
	binaries := os.Getenv(binariesEnv)
	if binaries == "" {
		servertest.Absent(t, binariesEnv+" is not set; make long WHAT=kubernetes sets it")
	}
	isEtcds := func(flag string) bool { return strings.HasPrefix(flag, "--quota") }
	ours := slices.DeleteFunc(slices.Clone(flags), isEtcds)
	etcds := slices.DeleteFunc(slices.Clone(flags), func(flag string) bool { return !isEtcds(flag) })
	c := &cluster{}
	ports, err := freeport.Take(1)
	if err != nil {
		t.Fatal(err)
	}
	c.etcd = servertest.Start(t, func(s *servertest.Server) *exec.Cmd {
		client, peer := "http://"+s.Address, fmt.Sprintf("http://127.0.0.1:%d", ports[0])
		return exec.Command(filepath.Join(binaries, "etcd"), append([]string{
			"--data-dir=data", "--log-level=error", "--unsafe-no-fsync", // a kill of the process loses nothing
			"--listen-client-urls=" + client, "--advertise-client-urls=" + client,
			"--listen-peer-urls=" + peer, "--initial-advertise-peer-urls=" + peer, "--initial-cluster=default=" + peer,
		}, etcds...)...)
	})
	c.authority = tlstest.NewAuthority(t)
	certificate := c.authority.Server()
	c.api = servertest.Start(t, func(s *servertest.Server) *exec.Cmd {
		for name, content := range map[string]string{
			"cert.pem": string(certificate.Cert), "key.pem": string(certificate.Key),
			"tokens.csv": admin + ",admin,1,system:masters\n" + member + ",member,2\n",
		} {
			if err := os.WriteFile(filepath.Join(s.Dir, name), []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		return exec.Command(filepath.Join(binaries, "kube-apiserver"), append([]string{
			"--etcd-servers=http://" + c.etcd.Address, "--bind-address=127.0.0.1", "--secure-port=" + s.Port(),
			"--tls-cert-file=cert.pem", "--tls-private-key-file=key.pem",
			"--token-auth-file=tokens.csv", "--authorization-mode=RBAC",
			"--service-account-issuer=https://kubernetes.default.svc", "--service-account-key-file=cert.pem", "--service-account-signing-key-file=key.pem",
			"--service-cluster-ip-range=10.0.0.0/24", "--endpoint-reconciler-type=none", "--profiling=false",
		}, ours...)...)
	})
	c.await(t)
	return c
}

// await waits until the server serves, which is after it has begun to listen.
func (c *cluster) await(t testing.TB) {
	t.Helper()
	clients := c.client(t, c.api.Address, admin)
	servertest.Await(t, "the API server is ready", func() bool {
		err := clients.RESTClient().Get().AbsPath("/readyz").Do(t.Context()).Error()
		return err == nil
	})
}

// client returns one with a connection of its own.
func (c *cluster) client(t testing.TB, address, token string, change ...func(*rest.Config)) *kubernetes.Clientset {
	t.Helper()
	config := &rest.Config{
		Host: "https://" + address, BearerToken: token, TLSClientConfig: rest.TLSClientConfig{CAFile: c.authority.File},
		QPS: -1, Dial: new(net.Dialer).DialContext,
	}
	for _, do := range change {
		do(config)
	}
	h, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { utilnet.CloseIdleConnectionsFor(h.Transport) })
	clients, err := kubernetes.NewForConfigAndClient(config, h)
	if err != nil {
		t.Fatal(err)
	}
	return clients
}

func (c *cluster) namespace(t testing.TB) string {
	t.Helper()
	name := fmt.Sprintf("items-%d", c.named.Add(1))
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if _, err := c.client(t, c.api.Address, admin).CoreV1().Namespaces().Create(t.Context(), ns, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	return name
}

func open(t testing.TB, clients *kubernetes.Clientset, namespace string) *kubestore.Store {
	t.Helper()
	s, err := kubestore.Open(t.Context(), clients.CoordinationV1(), kubestore.Options{Namespace: namespace})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// backup saves etcd's data. The function that it returns puts them back as Kubernetes says: while the
// API server is stopped.
func (c *cluster) backup(t testing.TB) (restore func()) {
	t.Helper()
	data, saved := filepath.Join(c.etcd.Dir, "data"), filepath.Join(c.etcd.Dir, fmt.Sprintf("saved-%d", c.named.Add(1)))
	c.etcd.Kill()
	if err := os.CopyFS(saved, os.DirFS(data)); err != nil {
		t.Fatal(err)
	}
	c.etcd.Restart(t)
	c.await(t)
	return func() {
		c.api.Kill()
		c.etcd.Kill()
		if err := os.RemoveAll(data); err != nil {
			t.Fatal(err)
		}
		if err := os.CopyFS(data, os.DirFS(saved)); err != nil {
			t.Fatal(err)
		}
		c.etcd.Restart(t)
		c.api.Restart(t)
		c.await(t)
	}
}

// rig is a namespace of the cluster.
func (c *cluster) rig(t testing.TB, change ...func(*rest.Config)) castest.Rig {
	namespace, clients := c.namespace(t), c.client(t, c.api.Address, admin)
	leases := clients.CoordinationV1().Leases(namespace)
	return castest.Rig{
		Served: true,
		Open: func(t testing.TB, via func(string) string) cas.Store {
			return open(t, c.client(t, via(c.api.Address), admin, change...), namespace)
		},
		Empty: func(t testing.TB) {
			if err := leases.DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
				t.Fatal(err)
			}
		},
		Backup: c.backup,
		Native: func(t testing.TB, key string) []byte {
			lease, err := leases.Get(t.Context(), "epochfence."+strings.ReplaceAll(key, "/", "."), metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			return valueOf(t, lease.Annotations)
		},
	}
}

func valueOf(t testing.TB, annotations map[string]string) []byte {
	t.Helper()
	value := annotations["epochfence.github.io/value"]
	if !strings.Contains(annotations["epochfence.github.io/base64"], "value") {
		return []byte(value)
	}
	decoded, err := base64.StdEncoding.DecodeString(value)
	if err != nil {
		t.Fatal(err)
	}
	return decoded
}

func TestRealSuite(t *testing.T) {
	c := start(t)
	castest.Run(t, func(t testing.TB) castest.Rig { return c.rig(t) })
}

func TestRealSuiteOnHTTP1(t *testing.T) {
	c := start(t)
	castest.Run(t, func(t testing.TB) castest.Rig {
		return c.rig(t, func(config *rest.Config) { config.NextProtos = []string{"http/1.1"} })
	})
}

func TestRealLeases(t *testing.T) { leasetest.Run(t, onClusters(t)) }

// Histories that restore the store need a cluster of their own. All have started before, because
// that takes an API server seconds of a processor.
func onClusters(t *testing.T) func(t testing.TB) castest.Rig {
	clusters := make(chan *cluster, 3)
	for range cap(clusters) {
		clusters <- start(t)
	}
	return func(t testing.TB) castest.Rig {
		select {
		case c := <-clusters:
			return c.rig(t)
		default:
			return start(t).rig(t)
		}
	}
}

func TestRealItems(t *testing.T) {
	c := start(t)
	guardtest.Run(t, func(t testing.TB) castest.Rig { return c.rig(t) })
}

func TestRealLeaseRow(t *testing.T) {
	leasetest.Measure(t, leasetest.Row{
		Store:  "Kubernetes",
		Number: "the resourceVersion: it grows, also over deletions; a restored etcd repeats it, unless it was restored with `--bump-revision`",
		Needs:  "`rest.Config.QPS` of -1; an etcd of three members",
	}, func(t testing.TB) castest.Rig { return start(t).rig(t) })
}

func transport(pool *x509.CertPool) *http.Transport {
	return &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}}
}
