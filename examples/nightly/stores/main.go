// Command stores is examples/nightly with the leases on a real server of any kind. It is a module of its
// own, so that the clients are in no go.sum but this one. Compiling it takes minutes.
//
//	cd examples/nightly/stores
//	GOWORK=off go run . -lease etcd://127.0.0.1:2379
//	GOWORK=off go run . -lease consul://127.0.0.1:8500
//	GOWORK=off go run . -lease zookeeper://127.0.0.1:2181
//	GOWORK=off go run . -lease redis://127.0.0.1:6379/0
//	GOWORK=off go run . -lease kubernetes://NAMESPACE # the cluster is that of kubectl
//	GOWORK=off go run . -lease postgres://127.0.0.1/test
//	GOWORK=off go run . -lease nats://127.0.0.1:4222/BUCKET
//
// Each run has a group of its own, whose leases are removed at the end. `make demo WHICH=nightly ON=stores` starts
// the servers that need no cluster and plays on each.
package main

import (
	"context"
	"io"
	"log"
	"strings"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/hashicorp/consul/api"
	"github.com/redis/go-redis/v9"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/cas/consulstore"
	"github.com/epochfence/epochfence/cas/etcdstore"
	"github.com/epochfence/epochfence/cas/kubestore"
	"github.com/epochfence/epochfence/cas/redisstore"
	"github.com/epochfence/epochfence/cas/zkstore"
	"github.com/epochfence/epochfence/examples/nightly/rebuild"
	"github.com/epochfence/epochfence/internal/show"
	"github.com/epochfence/epochfence/internal/show/stores"
)

func main() { show.Main(theShow()) }

func theShow() show.Show {
	return rebuild.New(
		stores.Kind{Schemes: []string{"etcd"}, URL: "etcd://HOST:PORT,…", Open: openEtcd},
		stores.Kind{Schemes: []string{"consul"}, URL: "consul://HOST:PORT", Open: openConsul},
		stores.Kind{Schemes: []string{"zookeeper"}, URL: "zookeeper://HOST:PORT,…", Open: openZooKeeper},
		stores.Kind{Schemes: []string{"redis", "rediss"}, URL: "redis://HOST:PORT/DB", Open: openRedis},
		stores.Kind{Schemes: []string{"kubernetes"}, URL: "kubernetes://NAMESPACE", Open: openKubernetes},
	)
}

func rest(at string) string {
	_, after, _ := strings.Cut(at, "://")
	return after
}

func openEtcd(_ context.Context, at string) (cas.Store, func(), error) {
	c, err := clientv3.New(clientv3.Config{Endpoints: strings.Split(rest(at), ","), DialTimeout: show.Reachable, Logger: zap.NewNop()})
	if err != nil {
		return nil, nil, err
	}
	s, err := etcdstore.Open(c, etcdstore.Options{})
	return stores.Opened(s, err, func() { _ = c.Close() })
}

func openConsul(_ context.Context, at string) (cas.Store, func(), error) {
	config := api.DefaultConfig()
	config.Address = rest(at)
	c, err := api.NewClient(config)
	if err != nil {
		return nil, nil, err
	}
	s, err := consulstore.Open(c, consulstore.Options{})
	return s, func() {}, err
}

func openZooKeeper(ctx context.Context, at string) (cas.Store, func(), error) {
	c, _, err := zk.Connect(strings.Split(rest(at), ","), 5*time.Second, zk.WithLogInfo(false), zk.WithLogger(log.New(io.Discard, "", 0)))
	if err != nil {
		return nil, nil, err
	}
	s, err := zkstore.Open(ctx, c, zkstore.Options{})
	return stores.Opened(s, err, c.Close)
}

func openRedis(ctx context.Context, at string) (cas.Store, func(), error) {
	o, err := redis.ParseURL(at)
	if err != nil {
		return nil, nil, err
	}
	o.MaxRetries = -1 // a write that is sent again finds itself, and looks like a conflict
	c := redis.NewClient(o)
	s, err := redisstore.Open(ctx, c, redisstore.Options{})
	return stores.Opened(s, err, func() { _ = c.Close() })
}

func openKubernetes(ctx context.Context, at string) (cas.Store, func(), error) {
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(clientcmd.NewDefaultClientConfigLoadingRules(), nil).ClientConfig()
	if err != nil {
		return nil, nil, err
	}
	config.QPS = -1
	c, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, nil, err
	}
	s, err := kubestore.Open(ctx, c.CoordinationV1(), kubestore.Options{Namespace: rest(at)})
	return s, func() {}, err
}
