package consulstore_test

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/hashicorp/consul/api"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/cas/castest"
	"github.com/epochfence/epochfence/cas/consulstore"
	"github.com/epochfence/epochfence/cas/guard/guardtest"
	"github.com/epochfence/epochfence/internal/servers/servertest"
	"github.com/epochfence/epochfence/internal/suites/commandtest"
	"github.com/epochfence/epochfence/lease/leasetest"
	"github.com/epochfence/epochfence/sinks/cassink/cassinktest"
)

func open(t testing.TB, c *api.Client, prefix string) cas.Store {
	t.Helper()
	s, err := consulstore.Open(c, consulstore.Options{Prefix: prefix})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func rig(t testing.TB) castest.Rig {
	s := start(t)
	empty := func(t testing.TB) {
		s.Restart(t)
		awaitLeader(t, s)
	}
	return castest.Rig{
		Served: true,
		Open: func(t testing.TB, via func(string) string) cas.Store {
			return open(t, connect(t, via(s.Address), ""), "team/app")
		},
		Empty: empty,
		Backup: func(t testing.TB) func() {
			snapshot := save(t, s)
			return func() {
				empty(t) // a server that has more than the snapshot goes on above both, and repeats nothing
				restore(t, s, snapshot)
			}
		},
		Foreign: map[string]func(testing.TB, string) []byte{
			"a value without a note": func(t testing.TB, key string) []byte {
				if _, err := connect(t, s.Address, "").KV().Put(&api.KVPair{Key: "team/app~/" + key + "~", Value: []byte("theirs")}, nil); err != nil {
					t.Fatal(err)
				}
				return []byte("theirs")
			},
		},
		Native: func(t testing.TB, key string) []byte {
			pair, _, err := connect(t, s.Address, "").KV().Get("team/app~/"+key+"~", nil)
			if err != nil || pair == nil {
				t.Fatalf("%+v, %v", pair, err)
			}
			return pair.Value
		},
	}
}

func save(t testing.TB, s *servertest.Server) []byte {
	t.Helper()
	r, _, err := connect(t, s.Address, "").Snapshot().Save(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Close() }()
	snapshot, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return snapshot
}

func restore(t testing.TB, s *servertest.Server, snapshot []byte) {
	t.Helper()
	if err := connect(t, s.Address, "").Snapshot().Restore(nil, bytes.NewReader(snapshot)); err != nil {
		t.Fatal(err)
	}
	awaitLeader(t, s)
}

func TestRealSuite(t *testing.T) { t.Parallel(); castest.Run(t, rig) }

func TestRealLeases(t *testing.T) { t.Parallel(); leasetest.Run(t, rig) }

func TestRealItems(t *testing.T) { t.Parallel(); guardtest.Run(t, rig) }

func TestRealConsumers(t *testing.T) { t.Parallel(); cassinktest.Run(t, rig) }

func TestRealTheCommandReachesIt(t *testing.T) {
	s := start(t)
	commandtest.Reaches(t, open(t, connect(t, s.Address, ""), "team/app"), "consul://"+s.Address+"/team/app")
}

func TestCommitRow(t *testing.T) { cassinktest.Measure(t, "Consul", rig) }

func TestRealLeaseRow(t *testing.T) {
	leasetest.Measure(t, leasetest.Row{
		Store:  "Consul",
		Number: "the ModifyIndex: it grows, also over deletions; a new cluster made of a snapshot repeats it",
		Needs:  "three servers",
	}, rig)
}

// Each client has a server of its own, or the agent that is none and forwards to the servers.
func TestRealOnThreeNodes(t *testing.T) {
	t.Parallel()
	n := startNodes(t, 3)
	addresses := n.addresses()
	var history, client atomic.Int64
	create := func(t testing.TB) castest.Rig {
		prefix := "history" + string(rune('a'+history.Add(1)))
		return castest.Rig{
			Open: func(t testing.TB, _ func(string) string) cas.Store {
				address := addresses[int(client.Add(1))%len(addresses)]
				return open(t, connect(t, address, ""), prefix)
			},
			Kill: n.killLeader,
		}
	}
	castest.RunKilled(t, create)
	leasetest.RunKilled(t, create)
	cassinktest.RunKilled(t, create)
}

func TestRealAKeyThatWasThereBeforeIsReplacedAsItWasSeen(t *testing.T) {
	c := connect(t, start(t).Address, "")
	s := open(t, c, "")
	put := func(value string) {
		t.Helper()
		if _, err := c.KV().Put(&api.KVPair{Key: "epochfence~/stock/7~", Value: []byte(value)}, nil); err != nil {
			t.Fatal(err)
		}
	}
	put("10")
	if _, err := s.Swap(t.Context(), cas.Item{Key: "stock/7"}, []byte("1"), nil); !errors.Is(err, cas.ErrConflict) {
		t.Fatalf("it was overwritten as if it were absent: %v", err)
	}
	seen, err := s.Get(t.Context(), "stock/7")
	if err != nil || string(seen.Value) != "10" {
		t.Fatalf("%+v, %v", seen, err)
	}
	put("9")
	if _, err := s.Swap(t.Context(), seen, []byte("8"), nil); !errors.Is(err, cas.ErrConflict) {
		t.Fatalf("a value that has changed was replaced: %v", err)
	}
	if seen, err = s.Get(t.Context(), "stock/7"); err != nil {
		t.Fatal(err)
	}
	if seen, err = s.Swap(t.Context(), seen, []byte("8"), []byte("note")); err != nil {
		t.Fatal(err)
	}
	put("7")
	if _, err := s.Swap(t.Context(), seen, []byte("6"), nil); !errors.Is(err, cas.ErrConflict) {
		t.Fatalf("a value that somebody else has changed was replaced: %v", err)
	}
	if seen, err = s.Get(t.Context(), "stock/7"); err != nil || len(seen.Note) > 0 {
		t.Fatalf("the note of another value was read: %+v, %v", seen, err)
	}
	if err := s.Delete(t.Context(), seen); err != nil {
		t.Fatal(err)
	}
	if left, _, err := c.KV().List("epochfence~/", nil); err != nil || len(left) > 0 {
		t.Errorf("after the deletion there is %+v, %v", left, err)
	}
}

// A conflict would be tried again forever.
func TestRealATokenThatMayNotWriteIsNoConflict(t *testing.T) {
	server := start(t, "-hcl", `acl { enabled = true default_policy = "deny" }`)
	var root *api.ACLToken
	servertest.Await(t, "Consul has a first token", func() (ok bool) {
		var err error
		root, _, err = connect(t, server.Address, "").ACL().Bootstrap()
		return err == nil
	})
	admin := connect(t, server.Address, root.SecretID)
	token := func(name, rules string) string {
		if _, _, err := admin.ACL().PolicyCreate(&api.ACLPolicy{Name: name, Rules: rules}, nil); err != nil {
			t.Fatal(err)
		}
		// TokenCreate sends what Consul 1.8 does not know.
		var created api.ACLToken
		if _, err := admin.Raw().Write("/v1/acl/token", map[string]any{"Policies": []map[string]string{{"Name": name}}}, &created, nil); err != nil {
			t.Fatal(err)
		}
		return created.SecretID
	}
	s := open(t, connect(t, server.Address, token("writer", `key_prefix "epochfence~" { policy = "write" }`)), "")
	if _, err := s.Facts(t.Context()); err != nil {
		t.Error(err)
	}
	item, err := s.Swap(t.Context(), cas.Item{Key: "orders"}, []byte("x"), nil)
	if err != nil {
		t.Fatal(err)
	}
	reader := open(t, connect(t, server.Address, token("reader", `key_prefix "epochfence~" { policy = "read" }`)), "")
	if got, err := reader.Get(t.Context(), "orders"); err != nil || got.Version != item.Version {
		t.Errorf("%+v, %v", got, err)
	}
	stranger := open(t, connect(t, server.Address, token("stranger", `key_prefix "another~" { policy = "write" }`)), "")
	absent, err := stranger.Get(t.Context(), "orders")
	if err != nil || absent.Live {
		t.Errorf("%+v, %v", absent, err)
	}
	if _, err := stranger.Swap(t.Context(), absent, []byte("y"), nil); err == nil || errors.Is(err, cas.ErrConflict) {
		t.Errorf("what may not be read was written: err = %v", err)
	}
	for who, s := range map[string]cas.Store{"a reader": reader, "a stranger": stranger} {
		_, swapped := s.Swap(t.Context(), item, []byte("y"), nil)
		for what, err := range map[string]error{"swap": swapped, "delete": s.Delete(t.Context(), item)} {
			if err == nil || errors.Is(err, cas.ErrConflict) || !strings.Contains(err.Error(), "Permission denied") {
				t.Errorf("%s of %s: err = %v", what, who, err)
			}
		}
	}
}

func TestAPrefixThatTheKeysUseIsRefused(t *testing.T) {
	for _, prefix := range []string{"a~b", "~", "/a", "\xff"} {
		if _, err := consulstore.Open(nil, consulstore.Options{Prefix: prefix}); err == nil || !strings.Contains(err.Error(), "Options.Prefix") {
			t.Errorf("%q: %v", prefix, err)
		}
	}
}
