package redisstore_test

import (
	"context"
	"crypto/rand"
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/cas/castest"
	"github.com/epochfence/epochfence/cas/guard/guardtest"
	"github.com/epochfence/epochfence/cas/redisstore"
	"github.com/epochfence/epochfence/internal/servers/servertest"
	"github.com/epochfence/epochfence/internal/suites/commandtest"
	"github.com/epochfence/epochfence/lease"
	"github.com/epochfence/epochfence/lease/leasetest"
	"github.com/epochfence/epochfence/sinks/cassink/cassinktest"
)

// serverEnv is the path of another server than the redis-server on PATH, such as valkey-server.
const serverEnv = "EPOCHFENCE_TEST_REDIS_SERVER"

func start(t testing.TB, args ...string) *servertest.Server {
	t.Helper()
	program := os.Getenv(serverEnv)
	if program == "" {
		program = servertest.Find(t, "Debian package redis-server", "redis-server", "valkey-server")
	}
	return servertest.Start(t, func(s *servertest.Server) *exec.Cmd {
		return exec.Command(program, append([]string{"--bind", "127.0.0.1", "--port", s.Port(), "--appendonly", "yes", "--save", ""}, args...)...)
	})
}

func connect(t testing.TB, address string, change func(*redis.Options)) *redis.Client {
	o := &redis.Options{Addr: address, MaxRetries: -1}
	change(o)
	c := redis.NewClient(o)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func asItIs(*redis.Options) {}

func open(t testing.TB, address string) cas.Store {
	t.Helper()
	s, err := redisstore.Open(t.Context(), connect(t, address, asItIs), redisstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestSuite(t *testing.T) {
	t.Parallel()
	s := start(t)
	castest.Run(t, func(t testing.TB) castest.Rig { return rig(t, s) })
}

func TestLeases(t *testing.T) {
	t.Parallel()
	leasetest.Run(t, func(t testing.TB) castest.Rig { return rig(t, start(t)) })
}

func TestItems(t *testing.T) {
	t.Parallel()
	guardtest.Run(t, func(t testing.TB) castest.Rig { return rig(t, start(t)) })
}

func TestConsumers(t *testing.T) {
	t.Parallel()
	cassinktest.Run(t, func(t testing.TB) castest.Rig { return rig(t, start(t)) })
}

func TestAServerThatIsKilled(t *testing.T) {
	t.Parallel()
	create := func(t testing.TB) castest.Rig {
		s := start(t, "--appendfsync", "always")
		return castest.Rig{
			Open: func(t testing.TB, _ func(string) string) cas.Store { return open(t, s.Address) },
			Kill: s.Restart,
		}
	}
	castest.RunKilled(t, create)
	leasetest.RunKilled(t, create)
	cassinktest.RunKilled(t, create)
}

func TestTheCommandReachesIt(t *testing.T) {
	s := start(t)
	commandtest.Reaches(t, open(t, s.Address), "redis://"+s.Address+"/0")
}

func TestCommitRow(t *testing.T) {
	cassinktest.Measure(t, "Redis, Valkey", func(t testing.TB) castest.Rig { return rig(t, start(t)) })
}

func TestLeaseRow(t *testing.T) {
	leasetest.Measure(t, leasetest.Row{
		Store:  "Redis, Valkey",
		Number: "a counter of the items: it grows, but a failover that loses writes repeats it",
		Needs:  "`maxmemory-policy noeviction`; `appendfsync always` and `WAIT` make losses rarer, not impossible",
	}, func(t testing.TB) castest.Rig { return rig(t, start(t)) })
}

func rig(t testing.TB, s *servertest.Server) castest.Rig {
	admin := connect(t, s.Address, asItIs)
	must := func(t testing.TB, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	empty := func(t testing.TB) { must(t, admin.FlushAll(t.Context()).Err()) }
	empty(t)
	address := s.Address
	return castest.Rig{
		Served: true,
		Open:   func(t testing.TB, via func(string) string) cas.Store { return open(t, via(address)) },
		Empty:  empty,
		Backup: func(t testing.TB) func() {
			saved := dump(t, admin)
			return func() { // at once, as members write meanwhile
				_, err := admin.TxPipelined(t.Context(), func(p redis.Pipeliner) error {
					p.FlushAll(t.Context())
					for key, value := range saved {
						p.Restore(t.Context(), key, 0, value)
					}
					return nil
				})
				must(t, err)
			}
		},
		Failover: func(t testing.TB) func() {
			replica := replicaOf(t, s)
			return func() { address = replica.Address }
		},
		Foreign: map[string]func(testing.TB, string) []byte{
			"a string": func(t testing.TB, key string) []byte {
				must(t, admin.Set(t.Context(), "{epochfence}:"+key, "theirs", 0).Err())
				return []byte("theirs")
			},
			"a list": func(t testing.TB, key string) []byte {
				must(t, admin.LPush(t.Context(), "{epochfence}:"+key, "theirs").Err())
				return nil
			},
			"a hash": func(t testing.TB, key string) []byte {
				must(t, admin.HSet(t.Context(), "{epochfence}:"+key, "field", "theirs").Err())
				return nil
			},
			"a list where an item was": func(t testing.TB, key string) []byte {
				if _, err := open(t, address).Swap(t.Context(), cas.Item{Key: key}, []byte("ours"), nil); err != nil {
					t.Fatal(err)
				}
				must(t, admin.Del(t.Context(), "{epochfence}:"+key).Err())
				must(t, admin.LPush(t.Context(), "{epochfence}:"+key, "theirs").Err())
				return nil
			},
		},
		Full: func(t testing.TB) func() {
			must(t, admin.ConfigSet(t.Context(), "maxmemory", "1mb").Err())
			return func() { must(t, admin.ConfigSet(t.Context(), "maxmemory", "0").Err()) }
		},
		Native: func(t testing.TB, key string) []byte {
			value, err := admin.Get(t.Context(), "{epochfence}:"+key).Bytes()
			if err != nil {
				t.Fatal(err)
			}
			return value
		},
	}
}

// replicaOf returns a server that has the primary's items, and gets no more of them.
func replicaOf(t testing.TB, primary *servertest.Server) *servertest.Server {
	t.Helper()
	replica := start(t, "--replicaof", strings.Replace(primary.Address, ":", " ", 1))
	c := connect(t, replica.Address, asItIs)
	want := connect(t, primary.Address, asItIs).DBSize(t.Context()).Val()
	servertest.Await(t, "the replica has what the primary has", func() bool {
		state, err := c.Info(t.Context(), "replication").Result()
		return err == nil && strings.Contains(state, "master_link_status:up") && c.DBSize(t.Context()).Val() == want
	})
	if err := c.ReplicaOf(t.Context(), "NO", "ONE").Err(); err != nil {
		t.Fatal(err)
	}
	return replica
}

func dump(t testing.TB, c *redis.Client) map[string]string {
	t.Helper()
	saved := map[string]string{}
	keys, err := c.Keys(t.Context(), "*").Result()
	for _, key := range keys {
		if err == nil {
			saved[key], err = c.Dump(t.Context(), key).Result()
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	return saved
}

func TestWhatWouldLoseOrRepeatAWriteIsRefusedWithTheRemedy(t *testing.T) {
	s := start(t, "--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru")
	_, err := redisstore.Open(t.Context(), connect(t, s.Address, asItIs), redisstore.Options{})
	wantSaid(t, err, "CONFIG SET maxmemory-policy noeviction")
	_, err = redisstore.Open(t.Context(), connect(t, s.Address, func(o *redis.Options) { o.MaxRetries = 0 }), redisstore.Options{})
	wantSaid(t, err, "MaxRetries to -1")
	_, err = redisstore.Open(t.Context(), connect(t, s.Address, asItIs), redisstore.Options{Prefix: "a{b}"})
	wantSaid(t, err, "brace")
}

// An operator gives the server another policy, and a replica that is promoted may have one.
func TestAPolicyThatEvictsEndsLeasesBeforeTheyAreForgotten(t *testing.T) {
	s := start(t, "--maxmemory", "20mb", "--maxmemory-policy", "noeviction")
	admin := connect(t, s.Address, asItIs)
	member, err := lease.Open(t.Context(), open(t, s.Address), lease.Options{Group: "nightly", TTL: 5 * time.Second}) // no stall is to end the lease first
	if err != nil {
		t.Fatal(err)
	}
	defer member.Close()
	h, err := member.Acquire(t.Context(), "job")
	if err != nil {
		t.Fatal(err)
	}
	if err := admin.ConfigSet(t.Context(), "maxmemory-policy", "allkeys-lru").Err(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-h.Context().Done():
	case <-time.After(time.Minute):
		t.Fatal("the lease is held")
	}
	if err := h.Err(); !errors.Is(err, cas.ErrUnsuitable) || !strings.Contains(err.Error(), "CONFIG SET maxmemory-policy noeviction") {
		t.Errorf("the lease was lost by: %v", err)
	}
	_ = h.Release(t.Context())
	for range 30 { // the registration is forgotten
		if err := admin.Set(t.Context(), rand.Text(), make([]byte, 1<<20), 0).Err(); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	if _, err := member.Acquire(ctx, "job"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a lease is taken: %v", err)
	}
	if err := errors.Join(admin.FlushAll(t.Context()).Err(), admin.ConfigSet(t.Context(), "maxmemory-policy", "noeviction").Err()); err != nil {
		t.Fatal(err)
	}
	if _, err := member.Acquire(t.Context(), "job"); err != nil {
		t.Errorf("after the remedy: %v", err)
	}
}

func wantSaid(t *testing.T, err error, says string) {
	t.Helper()
	if err == nil || !strings.HasPrefix(err.Error(), "redisstore: ") || !strings.Contains(err.Error(), says) {
		t.Errorf("err = %v, want one that says %q", err, says)
	}
}

func TestAStringThatWasThereBeforeIsReplacedAsItWasSeen(t *testing.T) {
	server := start(t)
	c := connect(t, server.Address, asItIs)
	s := open(t, server.Address)
	if err := c.Set(t.Context(), "{epochfence}:stock/7", "10", 0).Err(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Swap(t.Context(), cas.Item{Key: "stock/7"}, []byte("1"), nil); err == nil {
		t.Fatal("it was overwritten as if it were absent")
	}
	seen, err := s.Get(t.Context(), "stock/7")
	if err != nil || string(seen.Value) != "10" {
		t.Fatalf("%+v, %v", seen, err)
	}
	if err := c.Set(t.Context(), "{epochfence}:stock/7", "9", 0).Err(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Swap(t.Context(), seen, []byte("8"), nil); err == nil {
		t.Fatal("a value that has changed was replaced")
	}
	if seen, err = s.Get(t.Context(), "stock/7"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Swap(t.Context(), seen, []byte("8"), []byte("note")); err != nil {
		t.Fatal(err)
	}
}

func TestAcknowledgedWritesSurviveARestart(t *testing.T) {
	server := start(t, "--appendfsync", "always") // by default, a write may wait for 2 s for a slow fsync, and is answered meanwhile
	s := open(t, server.Address)
	item, err := s.Swap(t.Context(), cas.Item{Key: "orders"}, []byte("x"), []byte("note"))
	if err != nil {
		t.Fatal(err)
	}
	server.Restart(t)
	now, err := open(t, server.Address).Get(t.Context(), "orders")
	if err != nil || now.Version != item.Version || now.Number != item.Number || string(now.Note) != "note" {
		t.Errorf("%+v became %+v, %v", item, now, err)
	}
}
