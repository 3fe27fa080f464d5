package etcdtest_test

import (
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/cas/castest"
	"github.com/epochfence/epochfence/cas/etcdstore"
	"github.com/epochfence/epochfence/cas/guard/guardtest"
	"github.com/epochfence/epochfence/internal/servers/etcdtest"
	"github.com/epochfence/epochfence/internal/suites/commandtest"
	"github.com/epochfence/epochfence/lease/leasetest"
	"github.com/epochfence/epochfence/sinks/cassink/cassinktest"
)

func open(t testing.TB, addresses ...string) cas.Store {
	t.Helper()
	s, err := etcdstore.Open(etcdtest.Client(t, addresses...), etcdstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func rig(t testing.TB) castest.Rig {
	s := etcdtest.Start(t)
	return castest.Rig{
		Served: true,
		Open:   func(t testing.TB, via func(string) string) cas.Store { return open(t, via(s.Address)) },
		Empty:  s.Empty,
		Backup: s.Backup,
		Foreign: map[string]func(testing.TB, string) []byte{
			"a value without a note": func(t testing.TB, key string) []byte {
				if _, err := etcdtest.Client(t, s.Address).Put(t.Context(), "epochfence:"+key, "theirs"); err != nil {
					t.Fatal(err)
				}
				return []byte("theirs")
			},
		},
		Full: func(t testing.TB) func() {
			c := etcdtest.Client(t, s.Address)
			alarm := func(action pb.AlarmRequest_AlarmAction) {
				_, err := pb.NewMaintenanceClient(c.ActiveConnection()).Alarm(t.Context(), &pb.AlarmRequest{Action: action, Alarm: pb.AlarmType_NOSPACE})
				if err != nil {
					t.Fatal(err)
				}
			}
			alarm(pb.AlarmRequest_ACTIVATE)
			return func() { alarm(pb.AlarmRequest_DEACTIVATE) }
		},
		Native: func(t testing.TB, key string) []byte {
			r, err := etcdtest.Client(t, s.Address).Get(t.Context(), "epochfence:"+key)
			if err != nil || len(r.Kvs) != 1 {
				t.Fatalf("%v, %v", r, err)
			}
			return r.Kvs[0].Value
		},
	}
}

func TestSuite(t *testing.T) { t.Parallel(); castest.Run(t, rig) }

func TestLeases(t *testing.T) { t.Parallel(); leasetest.Run(t, rig) }

func TestItems(t *testing.T) { t.Parallel(); guardtest.Run(t, rig) }

func TestConsumers(t *testing.T) { t.Parallel(); cassinktest.Run(t, rig) }

func TestTheCommandReachesIt(t *testing.T) {
	s := etcdtest.Start(t)
	commandtest.Reaches(t, open(t, s.Address), "etcd://"+s.Address)
}

func TestCommitRow(t *testing.T) { cassinktest.Measure(t, "etcd", rig) }

func TestLeaseRow(t *testing.T) {
	leasetest.Measure(t, leasetest.Row{
		Store:  "etcd",
		Number: "the ModRevision: it grows, also over deletions; a restored backup repeats it",
		Needs:  "three servers",
	}, rig)
}

func TestOnThreeNodes(t *testing.T) {
	t.Parallel()
	create := func(t testing.TB) castest.Rig {
		c := etcdtest.StartCluster(t, 3)
		return castest.Rig{
			Open: func(t testing.TB, _ func(string) string) cas.Store { return open(t, c.Addresses()...) },
			Kill: c.KillLeader,
		}
	}
	for what, kills := range map[string]func(*testing.T, func(testing.TB) castest.Rig){
		"items": castest.RunKilled, "leases": leasetest.RunKilled, "consumers": cassinktest.RunKilled,
	} {
		t.Run(what, func(t *testing.T) { t.Parallel(); kills(t, create) })
	}
}

func TestAKeyThatWasThereBeforeIsReplacedAsItWasSeen(t *testing.T) {
	server := etcdtest.Start(t)
	s, c := open(t, server.Address), etcdtest.Client(t, server.Address)
	put := func(value string) {
		t.Helper()
		if _, err := c.Put(t.Context(), "epochfence:stock/7", value); err != nil {
			t.Fatal(err)
		}
	}
	put("10")
	if _, err := s.Swap(t.Context(), cas.Item{Key: "stock/7"}, []byte("1"), nil); err == nil {
		t.Fatal("it was overwritten as if it were absent")
	}
	seen, err := s.Get(t.Context(), "stock/7")
	if err != nil || string(seen.Value) != "10" {
		t.Fatalf("%+v, %v", seen, err)
	}
	put("9")
	if _, err := s.Swap(t.Context(), seen, []byte("8"), nil); err == nil {
		t.Fatal("a value that has changed was replaced")
	}
	if seen, err = s.Get(t.Context(), "stock/7"); err != nil {
		t.Fatal(err)
	}
	if seen, err = s.Swap(t.Context(), seen, []byte("8"), []byte("note")); err != nil {
		t.Fatal(err)
	}
	put("7")
	if _, err := s.Swap(t.Context(), seen, []byte("6"), nil); err == nil {
		t.Fatal("a value that somebody else has changed was replaced")
	}
	if seen, err = s.Get(t.Context(), "stock/7"); err != nil || len(seen.Note) > 0 {
		t.Fatalf("the note of another value was read: %+v, %v", seen, err)
	}
}

func TestAPrefixThatTheKeysUseIsRefused(t *testing.T) {
	for _, prefix := range []string{"a:b", "a#", "@"} {
		if _, err := etcdstore.Open(nil, etcdstore.Options{Prefix: prefix}); err == nil {
			t.Errorf("%q was taken", prefix)
		}
	}
}
