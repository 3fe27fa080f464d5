package natsstore_test

import (
	"context"
	"errors"
	"flag"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/cas/castest"
	"github.com/epochfence/epochfence/cas/guard/guardtest"
	"github.com/epochfence/epochfence/cas/natsstore"
	"github.com/epochfence/epochfence/internal/servers/natstest"
	"github.com/epochfence/epochfence/internal/servers/proxy"
	"github.com/epochfence/epochfence/internal/servers/servertest"
	"github.com/epochfence/epochfence/lease/leasetest"
	"github.com/epochfence/epochfence/sinks/cassink/cassinktest"
)

const (
	bucket  = "items"
	account = "$G" // of connections without credentials
)

func direct(address string) string { return address }

func connect(t testing.TB, s *natstest.Server, via func(string) string) jetstream.JetStream {
	t.Helper()
	address := strings.TrimPrefix(s.URL(), "nats://")
	nc, err := nats.Connect("nats://"+via(address), nats.MaxReconnects(-1), nats.ReconnectWait(10*time.Millisecond), nats.IgnoreDiscoveredServers())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	return js
}

func open(t testing.TB, js jetstream.JetStream) cas.Store {
	t.Helper()
	s, err := natsstore.Open(t.Context(), js, natsstore.Options{Bucket: bucket})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func rig(t testing.TB) castest.Rig {
	s := natstest.Start(t)
	js := connect(t, s, direct)
	remove := func(t testing.TB) {
		if err := js.DeleteKeyValue(t.Context(), bucket); err != nil {
			t.Fatal(err)
		}
	}
	return castest.Rig{
		Served: true,
		Open:   func(t testing.TB, via func(string) string) cas.Store { return open(t, connect(t, s, via)) },
		Backup: func(t testing.TB) func() {
			b, err := natstest.TakeBackup(t.Context(), js.Conn(), "KV_"+bucket)
			if err != nil {
				t.Fatal(err)
			}
			return func() {
				remove(t)
				if err := b.Restore(t.Context(), js.Conn()); err != nil {
					t.Fatal(err)
				}
			}
		},
		Empty: func(t testing.TB) { remove(t); open(t, js) },
		Foreign: map[string]func(testing.TB, string) []byte{
			"a value": func(t testing.TB, key string) []byte { return theirs(t, js, key, nil) },
			"a header that is broken": func(t testing.TB, key string) []byte {
				return theirs(t, js, key, nats.Header{"Epochfence-Note": {"%"}})
			},
		},
	}
}

// theirs writes a value of a bucket.
func theirs(t testing.TB, js jetstream.JetStream, key string, h nats.Header) []byte {
	t.Helper()
	m := &nats.Msg{Subject: "$KV." + bucket + "." + strings.ReplaceAll(key, "/", "."), Header: h, Data: []byte("theirs")}
	if _, err := js.PublishMsg(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	return m.Data
}

// Tests wait for leases to end and for servers to start. The command line goes before this.
func TestMain(m *testing.M) {
	_ = flag.Set("test.parallel", "3")
	os.Exit(m.Run())
}

func TestSuite(t *testing.T) { t.Parallel(); castest.Run(t, rig) }

func TestOnThreeNodes(t *testing.T) {
	t.Parallel()
	if os.Getenv("EPOCHFENCE_LONG") == "" {
		t.Skip("takes long, and CI runs it; set EPOCHFENCE_LONG=1")
	}
	create := func(t testing.TB) castest.Rig {
		c := natstest.StartCluster(t, 3)
		check := func(t testing.TB, err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		return castest.Rig{
			Open: func(t testing.TB, _ func(string) string) cas.Store {
				js := c.JetStream(t, nats.MaxReconnects(-1), nats.ReconnectWait(10*time.Millisecond))
				var s *natsstore.Store
				servertest.Await(t, "the bucket can be opened", func() bool {
					var err error
					s, err = natsstore.Open(t.Context(), js, natsstore.Options{Bucket: bucket, Replicas: 3})
					if err != nil {
						t.Logf("open: %v", err)
					}
					return err == nil
				})
				check(t, c.AwaitStream(t.Context(), "KV_"+bucket))
				// A node may not know yet that the stream listens to its subjects.
				servertest.Await(t, "the bucket answers at this node", func() bool {
					m := nats.NewMsg("$KV." + bucket + ".orders")
					m.Header.Set(jetstream.ExpectedLastSubjSeqHeader, "9007199254740993") // never
					_, err := js.PublishMsg(t.Context(), m, jetstream.WithRetryAttempts(0))
					return errors.As(err, new(*jetstream.APIError))
				})
				return s
			},
			Lag: func(t testing.TB) func() bool {
				fallen := slices.IndexFunc(c.Nodes(), func(s *natstest.Server) bool {
					return !s.Embedded().JetStreamIsStreamLeader(account, "KV_"+bucket) && !s.Embedded().JetStreamIsLeader()
				})
				check(t, c.Stop(fallen))
				check(t, os.RemoveAll(c.Nodes()[fallen].Dir()))
				check(t, c.Start(fallen))
				return func() bool { return !c.Nodes()[fallen].Embedded().JetStreamIsStreamCurrent(account, "KV_"+bucket) }
			},
			Kill: func(t testing.TB) {
				leader := -1
				servertest.Await(t, "the bucket has a leader", func() bool { leader = c.Leader("KV_" + bucket); return leader >= 0 })
				check(t, c.Stop(leader))
				check(t, c.Start(leader))
				check(t, c.Await(t.Context()))
				// A node that lacks part of a stream neither votes nor catches up without a leader
				// (nats-io/nats-server#7038), so the next one must not be stopped before.
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				check(t, c.AwaitStream(ctx, "KV_"+bucket))
			},
		}
	}
	castest.RunKilled(t, create)
	leasetest.RunKilled(t, create)
	cassinktest.RunKilled(t, create)
}

func TestAReadWhoseAnswerIsLostIsMadeAgain(t *testing.T) {
	t.Parallel()
	p, via, err := proxy.Between()
	must(t, err)
	t.Cleanup(p.Close)
	s := mustOpen(t, connect(t, natstest.Start(t), via))
	_, err = s.Swap(t.Context(), cas.Item{Key: "orders"}, []byte("paid"), nil)
	must(t, err)
	for what, lose := range map[string]func(){"request": p.LoseRequest, "answer": p.LoseAnswer} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		lose()
		if item, err := s.Get(ctx, "orders"); err != nil || string(item.Value) != "paid" {
			t.Errorf("the %s was lost: %q, %v", what, item.Value, err)
		}
		cancel()
	}
	if n := p.Struck(); n != 2 {
		t.Errorf("%d connections were ended, want 2", n)
	}
}

// Other programs read items of plain keys as they read any bucket.
func TestAPlainKeyIsTheKeyOfTheBucket(t *testing.T) {
	js := connect(t, natstest.Start(t), direct)
	s := open(t, js)
	if _, err := s.Swap(t.Context(), cas.Item{Key: "orders/4711"}, []byte("paid"), []byte("note")); err != nil {
		t.Fatal(err)
	}
	kv, err := js.KeyValue(t.Context(), bucket)
	if err != nil {
		t.Fatal(err)
	}
	e, err := kv.Get(t.Context(), "orders.4711")
	if err != nil || string(e.Value()) != "paid" {
		t.Fatalf("%v, %v", e, err)
	}
}

func TestAStrangersKeyIsNeitherListedNorWatched(t *testing.T) {
	js := connect(t, natstest.Start(t), direct)
	s := mustOpen(t, js)
	kv, err := js.KeyValue(t.Context(), bucket)
	must(t, err)
	for _, key := range []string{"a=zz", "a=61", "b"} { // no escape, an escape of a byte that needs none, a plain key
		_, err := kv.PutString(t.Context(), key, "x")
		must(t, err)
	}
	var keys []string
	for item, err := range s.List(t.Context(), "") {
		must(t, err)
		keys = append(keys, item.Key)
	}
	for item, err := range s.Watch(inTime(t), "") {
		must(t, err)
		if item.Key == "" {
			break
		}
		keys = append(keys, item.Key)
	}
	if len(keys) != 2 || keys[0] != "b" || keys[1] != "b" {
		t.Errorf("a list and a watch have %q", keys)
	}
}

func TestLeases(t *testing.T) { t.Parallel(); leasetest.Run(t, rig) }

func TestItems(t *testing.T) { t.Parallel(); guardtest.Run(t, rig) }

func TestConsumers(t *testing.T) { t.Parallel(); cassinktest.Run(t, rig) }

func TestCommitRow(t *testing.T) { cassinktest.Measure(t, "NATS", rig) }

func TestLeaseRow(t *testing.T) {
	leasetest.Measure(t, leasetest.Row{
		Store:  "NATS",
		Number: "the revision of the key: it grows; a bucket that is restored repeats it",
		Needs:  "three replicas, or `sync_interval: always`",
	}, rig)
}
