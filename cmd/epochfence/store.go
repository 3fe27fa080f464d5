package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/smithy-go/logging"
	"github.com/go-zookeeper/zk"
	"github.com/hashicorp/consul/api"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/cas/consulstore"
	"github.com/epochfence/epochfence/cas/dynamostore"
	"github.com/epochfence/epochfence/cas/etcdstore"
	"github.com/epochfence/epochfence/cas/natsstore"
	"github.com/epochfence/epochfence/cas/pgstore"
	"github.com/epochfence/epochfence/cas/redisstore"
	"github.com/epochfence/epochfence/cas/s3store"
	"github.com/epochfence/epochfence/cas/zkstore"
	"github.com/epochfence/epochfence/internal/text/secret"
	"github.com/epochfence/epochfence/operate"
	"github.com/epochfence/epochfence/sinks/cassink"
)

// This file is the sink in a store, as database.go wants it. It reads the URL of --store, which may
// name several hosts, refuses parameters that nobody took, and opens the client of each kind of
// store. A new driver is added here.

// store is the store of a cassink.
type store struct {
	items cas.Store
	flags flags
	of    string // what kind of store it is
	shut  func()
}

func openStore(ctx context.Context, f flags) (*store, error) {
	if err := secret.Check(f.store); err != nil {
		return nil, usage("--store: %w", err)
	}
	at, err := parseURL(f.store)
	if err != nil {
		return nil, usage("--store: %w", err)
	}
	open, known := drivers[at.scheme]
	if !known {
		return nil, usage("--store: %s:// is none of %s", at.scheme, schemes())
	}
	ctx, cancel := context.WithTimeout(ctx, f.timeout)
	defer cancel()
	s := &store{flags: f, of: at.scheme, shut: func() {}}
	if err = open(ctx, f, at, s); err == nil {
		err = at.unused()
	}
	if err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

// sink opens the sink, which is the first that some clients ask of their servers.
func (s *store) sink(ctx context.Context) (*cassink.Sink, error) {
	ctx, cancel := context.WithTimeout(ctx, s.flags.timeout)
	defer cancel()
	return cassink.Open(ctx, s.items, cassink.Options{Prefix: s.flags.schema})
}

func (s *store) close() { s.shut() }

func (s *store) operator(ctx context.Context) (operate.Operator, error) {
	sink, err := s.sink(ctx)
	if err != nil {
		return nil, err
	}
	return sink.Operator(), nil
}

func (s *store) tables(context.Context) (*tables, error) { return nil, nil }

func (s *store) grant(string, roleKind) (string, error) {
	return "", usage("rights in a store are given with its own tools; the page of its driver says which it needs")
}

func (s *store) run(context.Context, string) error { return errors.New("a store runs no SQL") }

func (s *store) examine(ctx context.Context) []finding {
	ctx, cancel := context.WithTimeout(ctx, s.flags.timeout)
	defer cancel()
	facts, err := s.items.Facts(ctx)
	if err != nil {
		return []finding{{Check: "store", Status: bad, Detail: err.Error()}}
	}
	return []finding{{
		Check: "store", Status: ok,
		Detail: fmt.Sprintf("%s, where the sink's keys begin with %s/ (%s)", s.of, cmp.Or(s.flags.schema, "epochfence"), facts.Source),
	}}
}

func (s *store) drill(ctx context.Context) ([]trial, error) {
	sink, err := s.sink(ctx)
	if err != nil {
		return nil, err
	}
	d := &drill[*cassink.Tx]{sink: sink, op: sink.Operator(), put: sink.DeadLetter, open: true}
	return d.run(ctx)
}

// driver opens a store's client and its items. What it sets before an error is closed.
type driver func(ctx context.Context, f flags, at *storeURL, s *store) error

var drivers map[string]driver

func init() { // it mentions itself: schemes
	drivers = map[string]driver{
		"consul": openConsul, "dynamodb": openDynamoDB, "etcd": openEtcd, "etcds": openEtcd, "nats": openBucket,
		"postgres": openItems, "postgresql": openItems, "redis": openRedis, "rediss": openRedis, "s3": openS3, "zookeeper": openZooKeeper,
	}
}

func schemes() string {
	return strings.Join(slices.Sorted(maps.Keys(drivers)), "://, ") + "://"
}

// openConsul: consul://HOST:PORT/PREFIX. The rest is in Consul's own variables, CONSUL_HTTP_TOKEN, CONSUL_HTTP_SSL and so on.
func openConsul(_ context.Context, _ flags, at *storeURL, s *store) error {
	c := api.DefaultConfig()
	c.Address = at.hosts[0]
	if at.user != nil || len(at.hosts) > 1 {
		return usage("--store: consul:// has one host, and its token in CONSUL_HTTP_TOKEN")
	}
	client, err := api.NewClient(c)
	if err != nil {
		return err
	}
	s.items, err = consulstore.Open(client, consulstore.Options{Prefix: at.path})
	return err
}

// openDynamoDB: dynamodb://TABLE/SCOPE. Region, credentials and endpoint are in AWS's own variables and files.
func openDynamoDB(ctx context.Context, _ flags, at *storeURL, s *store) error {
	c, err := config.LoadDefaultConfig(ctx, config.WithLogger(logging.Nop{}))
	if err != nil {
		return err
	}
	s.items, err = dynamostore.Open(ctx, dynamodb.NewFromConfig(c), dynamostore.Options{Table: at.hosts[0], Scope: at.path})
	return err
}

// openEtcd: etcd://USER:PASSWORD@HOST:PORT,…/PREFIX, or etcds:// with TLS and the certificates that the machine trusts.
func openEtcd(_ context.Context, f flags, at *storeURL, s *store) error {
	c := clientv3.Config{Endpoints: at.hosts, DialTimeout: f.timeout, Logger: zap.NewNop()}
	if at.user != nil {
		c.Username, c.Password = at.user.Username(), at.password()
	}
	if at.scheme == "etcds" {
		c.TLS = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	client, err := clientv3.New(c)
	if err != nil {
		return err
	}
	s.shut = func() { _ = client.Close() }
	s.items, err = etcdstore.Open(client, etcdstore.Options{Prefix: at.path})
	return err
}

// openBucket: nats://HOST:PORT,…/BUCKET, with --nats-creds and --nats-domain.
func openBucket(ctx context.Context, f flags, at *storeURL, s *store) error {
	if at.path == "" {
		return usage("--store: name the bucket, as in nats://HOST:PORT/BUCKET")
	}
	f.nats = strings.TrimSuffix(at.native(), "/"+at.path)
	b, err := openNATS(f)
	if err != nil {
		return err
	}
	s.shut = b.close
	if _, err := b.js.KeyValue(ctx, at.path); errors.Is(err, jetstream.ErrBucketNotFound) { // Open would create it
		return fmt.Errorf("--store: there is no bucket %q: %w", at.path, err)
	}
	s.items, err = natsstore.Open(ctx, b.js, natsstore.Options{Bucket: at.path})
	return err
}

// openItems: postgres://…?schema=SCHEMA, and what else pgx knows.
func openItems(ctx context.Context, f flags, at *storeURL, s *store) error {
	o := pgstore.Options{Schema: at.take("schema")}
	f.database = at.native()
	p, err := openPostgres(ctx, f)
	if err != nil {
		return err
	}
	s.shut = p.close
	s.items, err = pgstore.Open(ctx, p.pool, o)
	return err
}

// openRedis: redis://…?prefix=PREFIX, or rediss:// with TLS, and what else go-redis knows.
func openRedis(ctx context.Context, f flags, at *storeURL, s *store) error {
	o := redisstore.Options{Prefix: at.take("prefix")}
	c, err := redis.ParseURL(at.native())
	if err != nil {
		return usage("--store: %w", err)
	}
	c.MaxRetries, c.DialTimeout = -1, f.timeout // no command is sent twice
	redis.SetLogger(silent{})
	client := redis.NewClient(c)
	s.shut = func() { _ = client.Close() }
	s.items, err = redisstore.Open(ctx, client, o)
	return err
}

// openS3: s3://BUCKET/PREFIX?use_path_style=true. Region, credentials and endpoint are in AWS's own variables and files.
func openS3(ctx context.Context, _ flags, at *storeURL, s *store) error {
	style := at.take("use_path_style")
	byPath, err := strconv.ParseBool(style)
	if style != "" && err != nil {
		return usage("--store: use_path_style=%s; want true or false", style)
	}
	c, err := config.LoadDefaultConfig(ctx, config.WithLogger(logging.Nop{}))
	if err != nil {
		return err
	}
	client := s3.NewFromConfig(c, func(o *s3.Options) { o.UsePathStyle = byPath })
	s.items, err = s3store.Open(ctx, client, s3store.Options{Bucket: at.hosts[0], Prefix: at.path})
	return err
}

// openZooKeeper: zookeeper://USER:PASSWORD@HOST:PORT,…/ROOT.
func openZooKeeper(ctx context.Context, f flags, at *storeURL, s *store) error {
	conn, _, err := zk.Connect(at.hosts, f.timeout, zk.WithLogInfo(false), zk.WithLogger(log.New(io.Discard, "", 0)))
	if err != nil {
		return err
	}
	s.shut = conn.Close
	if at.user != nil {
		if err := conn.AddAuth("digest", []byte(at.user.Username()+":"+at.password())); err != nil {
			return fmt.Errorf("--store: log in to ZooKeeper at %s: %w", strings.Join(at.hosts, ","), err)
		}
	}
	root := "/" + cmp.Or(at.path, "epochfence")
	exists, err := cas.Await(ctx, func() (bool, error) {
		exists, _, err := conn.Exists(root)
		return exists, err
	})
	if err == nil && !exists { // Open would create it
		err = errors.New("it does not exist")
	}
	if err != nil {
		return fmt.Errorf("--store: node %s: %w", root, err)
	}
	s.items, err = zkstore.Open(ctx, conn, zkstore.Options{Root: root})
	return err
}

// silent is for clients whose log only repeats the error that this program prints.
type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}

// storeURL is what --store says: SCHEME://[USER[:PASSWORD]@]HOST[,HOST…][/PATH][?PARAMETER=…].
// net/url takes one host only.
type storeURL struct {
	text   string
	scheme string
	user   *url.Userinfo // or nil
	hosts  []string
	path   string // without the first slash
	query  url.Values
}

func parseURL(text string) (*storeURL, error) {
	u := &storeURL{text: text}
	scheme, rest, ok := strings.Cut(text, "://")
	if !ok {
		return nil, errors.New("want a URL, which begins with one of " + schemes())
	}
	u.scheme = scheme
	rest, query, _ := strings.Cut(rest, "?")
	authority, path, _ := strings.Cut(rest, "/")
	if at := strings.LastIndexByte(authority, '@'); at >= 0 {
		parsed, err := url.Parse("store://" + authority[:at] + "@host")
		if err != nil {
			return nil, errors.New("the user or the password is not escaped as in a URL")
		}
		u.user, authority = parsed.User, authority[at+1:]
	}
	u.hosts = strings.Split(authority, ",")
	if slices.Contains(u.hosts, "") {
		return nil, errors.New("a host is missing")
	}
	var err error
	if u.path, err = url.PathUnescape(path); err != nil {
		return nil, err
	}
	if u.query, err = url.ParseQuery(query); err != nil {
		return nil, err
	}
	return u, nil
}

// take returns a parameter and removes it.
func (u *storeURL) take(name string) string {
	value := u.query.Get(name)
	u.query.Del(name)
	return value
}

func (u *storeURL) unused() error {
	for name := range u.query {
		return usage("--store: %s:// has no parameter %q", u.scheme, name)
	}
	return nil
}

// native returns the URL for a client that parses URLs itself, with the parameters that are left.
func (u *storeURL) native() string {
	text, _, _ := strings.Cut(u.text, "?")
	if query := u.query.Encode(); query != "" {
		text += "?" + query
	}
	u.query = nil
	return text
}

func (u *storeURL) password() string {
	word, _ := u.user.Password()
	return word
}
