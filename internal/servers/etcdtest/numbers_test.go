package etcdtest_test

import (
	"fmt"
	"testing"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/epochfence/epochfence/internal/servers/etcdtest"
	"github.com/epochfence/epochfence/internal/suites/tokentest"
)

func TestWhichNumbersGrow(t *testing.T) {
	s := etcdtest.Start(t)
	c := etcdtest.Client(t, s.Address)
	written := 0
	read := func(of func(*mvccpb.KeyValue) int64) func(t testing.TB) int64 {
		return func(t testing.TB) int64 {
			r, err := c.Get(t.Context(), "lock")
			if err != nil || len(r.Kvs) != 1 {
				t.Fatalf("%v, %v", r, err)
			}
			return of(r.Kvs[0])
		}
	}
	tokentest.Show(t, tokentest.Server{
		Name: "etcd",
		Write: func(t testing.TB) {
			written++
			if _, err := c.Put(t.Context(), "lock", fmt.Sprint(written)); err != nil {
				t.Fatal(err)
			}
		},
		Delete: func(t testing.TB) {
			if _, err := c.Delete(t.Context(), "lock"); err != nil {
				t.Fatal(err)
			}
		},
		Backup: s.Backup,
		Numbers: map[string]func(t testing.TB) int64{
			"ModRevision":    read(func(kv *mvccpb.KeyValue) int64 { return kv.ModRevision }),
			"CreateRevision": read(func(kv *mvccpb.KeyValue) int64 { return kv.CreateRevision }),
			"Version":        read(func(kv *mvccpb.KeyValue) int64 { return kv.Version }),
		},
	})
}
