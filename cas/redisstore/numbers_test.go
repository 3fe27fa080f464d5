package redisstore_test

import (
	"testing"

	"github.com/epochfence/epochfence/internal/suites/tokentest"
)

func TestWhichNumbersGrow(t *testing.T) {
	primary := start(t)
	c := connect(t, primary.Address, asItIs)
	must := func(t testing.TB, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	tokentest.Show(t, tokentest.Server{
		Name:   "Redis",
		Write:  func(t testing.TB) { must(t, c.Incr(t.Context(), "lock").Err()) },
		Delete: func(t testing.TB) { must(t, c.Del(t.Context(), "lock").Err()) },
		Backup: func(t testing.TB) func() {
			saved := dump(t, c)["lock"]
			return func() {
				must(t, c.FlushAll(t.Context()).Err())
				must(t, c.Restore(t.Context(), "lock", 0, saved).Err())
			}
		},
		Failover: func(t testing.TB) func() {
			replica := replicaOf(t, primary)
			return func() { c = connect(t, replica.Address, asItIs) }
		},
		Numbers: map[string]func(t testing.TB) int64{
			"INCR": func(t testing.TB) int64 {
				n, err := c.Get(t.Context(), "lock").Int64()
				must(t, err)
				return n
			},
		},
	})
}
