package natsstore_test

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/cas/castest"
	"github.com/epochfence/epochfence/cas/natsstore"
	"github.com/epochfence/epochfence/internal/natstest"
)

const bucket = "items"

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
	}
}

func TestSuite(t *testing.T) { castest.Run(t, rig) }

func TestOnThreeNodes(t *testing.T) {
	if os.Getenv("EPOCHFENCE_LONG") == "" {
		t.Skip("takes long, and CI runs it; set EPOCHFENCE_LONG=1")
	}
	castest.RunCluster(t, func(t testing.TB) castest.Rig {
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
				s, err := natsstore.Open(t.Context(), js, natsstore.Options{Bucket: bucket, Replicas: 3})
				check(t, err)
				check(t, c.AwaitStream(t.Context(), "KV_"+bucket))
				return s
			},
			KillLeader: func(t testing.TB) {
				leader := c.Leader("KV_" + bucket)
				if leader < 0 {
					t.Fatal("the bucket has no leader")
				}
				check(t, c.Stop(leader))
				check(t, c.Start(leader))
				check(t, c.Await(t.Context()))
			},
		}
	})
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

func TestABucketThatLosesItemsIsRefusedWithTheCommand(t *testing.T) {
	js := connect(t, natstest.Start(t), direct)
	for says, c := range map[string]jetstream.StreamConfig{
		"nats kv add":               {Subjects: []string{"orders"}},
		"--subject-del-markers-ttl": {MaxMsgsPerSubject: 1},
		"--max-age=-1":              {MaxMsgsPerSubject: 1, AllowMsgTTL: true, MaxAge: time.Hour},
		"--discard=new":             {MaxMsgsPerSubject: 1, AllowMsgTTL: true, MaxMsgs: 100},
		"--max-msg-size":            {MaxMsgsPerSubject: 1, AllowMsgTTL: true, MaxMsgSize: 1000},
		"--no-discard-per-subject":  {MaxMsgsPerSubject: 1, AllowMsgTTL: true, Discard: jetstream.DiscardNew, DiscardNewPerSubject: true},
	} {
		c.Name = "KV_" + bucket
		if c.Subjects == nil {
			c.Subjects = []string{"$KV." + bucket + ".>"}
		}
		if _, err := js.CreateStream(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		_, err := natsstore.Open(t.Context(), js, natsstore.Options{Bucket: bucket})
		if err == nil || !strings.Contains(err.Error(), says) || !strings.Contains(err.Error(), bucket) {
			t.Errorf("err = %v, want one that says %q", err, says)
		}
		if err := js.DeleteStream(context.WithoutCancel(t.Context()), c.Name); err != nil {
			t.Fatal(err)
		}
	}
}

func TestAStrangersKeyIsNotListed(t *testing.T) {
	js := connect(t, natstest.Start(t), direct)
	s := open(t, js)
	kv, err := js.KeyValue(t.Context(), bucket)
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"a=zz", "a=61", "b"} { // no escape, an escape of a byte that needs none, a plain key
		if _, err := kv.PutString(t.Context(), key, "x"); err != nil {
			t.Fatal(err)
		}
	}
	var listed []string
	for item, err := range s.List(t.Context(), "") {
		if err != nil {
			t.Fatal(err)
		}
		listed = append(listed, item.Key)
	}
	if len(listed) != 1 || listed[0] != "b" {
		t.Errorf("listed %q", listed)
	}
}
