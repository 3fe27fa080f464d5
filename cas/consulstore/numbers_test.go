package consulstore_test

import (
	"fmt"
	"testing"

	"github.com/hashicorp/consul/api"

	"github.com/epochfence/epochfence/internal/suites/tokentest"
)

// Each write is an acquisition by another session, as Consul's guide has it for locks.
func TestRealWhichNumbersGrow(t *testing.T) {
	s := start(t)
	c := connect(t, s.Address, "")
	written := 0
	read := func(of func(*api.KVPair) uint64) func(t testing.TB) int64 {
		return func(t testing.TB) int64 {
			pair, _, err := c.KV().Get("lock", nil)
			if err != nil || pair == nil {
				t.Fatalf("%+v, %v", pair, err)
			}
			return int64(of(pair))
		}
	}
	tokentest.Show(t, tokentest.Server{
		Name: "Consul",
		Write: func(t testing.TB) {
			written++
			session, _, err := c.Session().Create(&api.SessionEntry{Behavior: api.SessionBehaviorRelease}, nil)
			if err != nil {
				t.Fatal(err)
			}
			pair := &api.KVPair{Key: "lock", Value: []byte(fmt.Sprint(written)), Session: session}
			if ok, _, err := c.KV().Acquire(pair, nil); !ok || err != nil {
				t.Fatalf("%v, %v", ok, err)
			}
			if ok, _, err := c.KV().Release(pair, nil); !ok || err != nil {
				t.Fatalf("%v, %v", ok, err)
			}
		},
		Delete: func(t testing.TB) {
			if _, err := c.KV().Delete("lock", nil); err != nil {
				t.Fatal(err)
			}
		},
		Backup: func(t testing.TB) func() {
			snapshot := save(t, s)
			return func() { // into a new cluster
				s.Restart(t)
				awaitLeader(t, s)
				restore(t, s, snapshot)
			}
		},
		Numbers: map[string]func(t testing.TB) int64{
			"ModifyIndex": read(func(p *api.KVPair) uint64 { return p.ModifyIndex }),
			"CreateIndex": read(func(p *api.KVPair) uint64 { return p.CreateIndex }),
			"LockIndex":   read(func(p *api.KVPair) uint64 { return p.LockIndex }),
		},
	})
}
