// Command stores is examples/inventory with the stock in Redis or Valkey, etcd or DynamoDB. It is a
// module of its own, so that their clients are in no go.sum but this one.
//
//	cd examples/inventory/stores
//	GOWORK=off go run . -sink redis://127.0.0.1:6379/0
//	GOWORK=off go run . -sink etcd://127.0.0.1:2379
//	GOWORK=off go run . -sink dynamodb://items # a table as package dynamostore describes; AWS_REGION and so on say where
//
// Its items have keys that begin with "inventory-", and are removed at the end. `make demo ON=stores`
// starts the three servers and plays on each.
package main

import (
	"cmp"
	"context"
	"net/url"
	"strings"

	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/redis/go-redis/v9"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/cas/dynamostore"
	"github.com/epochfence/epochfence/cas/etcdstore"
	"github.com/epochfence/epochfence/cas/redisstore"
	"github.com/epochfence/epochfence/examples/inventory/stock"
	"github.com/epochfence/epochfence/internal/show"
	"github.com/epochfence/epochfence/internal/show/stores"
)

func main() { show.Main(theShow()) }

func theShow() show.Show {
	return stock.New(
		stores.Kind{Schemes: []string{"redis", "rediss"}, URL: "redis://HOST:PORT/DB", Open: openRedis},
		stores.Kind{Schemes: []string{"etcd"}, URL: "etcd://HOST:PORT,…", Open: openEtcd},
		stores.Kind{Schemes: []string{"dynamodb"}, URL: "dynamodb://TABLE", Open: openDynamoDB},
	)
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

func openEtcd(_ context.Context, at string) (cas.Store, func(), error) {
	c, err := clientv3.New(clientv3.Config{
		Endpoints: strings.Split(strings.TrimPrefix(at, "etcd://"), ","), DialTimeout: show.Reachable, Logger: zap.NewNop(),
	})
	if err != nil {
		return nil, nil, err
	}
	s, err := etcdstore.Open(c, etcdstore.Options{})
	return stores.Opened(s, err, func() { _ = c.Close() })
}

func openDynamoDB(ctx context.Context, at string) (cas.Store, func(), error) {
	u, err := url.Parse(at)
	if err != nil {
		return nil, nil, err
	}
	c, err := config.LoadDefaultConfig(ctx)
	if err != nil {
		return nil, nil, err
	}
	s, err := dynamostore.Open(ctx, dynamodb.NewFromConfig(c), dynamostore.Options{Table: cmp.Or(u.Host, u.Opaque)})
	return s, func() {}, err
}
