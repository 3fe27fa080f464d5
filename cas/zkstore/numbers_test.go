package zkstore_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/go-zookeeper/zk"

	"github.com/epochfence/epochfence/internal/suites/tokentest"
)

func TestRealWhichNumbersGrow(t *testing.T) {
	s := start(t)
	c := connect(t, s.Address)
	read := func(of func(*zk.Stat) int64) func(t testing.TB) int64 {
		return func(t testing.TB) int64 {
			_, stat, err := c.Get("/lock")
			if err != nil {
				t.Fatal(err)
			}
			return of(stat)
		}
	}
	tokentest.Show(t, tokentest.Server{
		Name: "ZooKeeper",
		Write: func(t testing.TB) {
			_, err := c.Create("/lock", nil, 0, zk.WorldACL(zk.PermAll))
			if errors.Is(err, zk.ErrNodeExists) {
				_, err = c.Set("/lock", nil, -1)
			}
			if err != nil {
				t.Fatal(err)
			}
		},
		Delete: func(t testing.TB) {
			if err := c.Delete("/lock", -1); err != nil {
				t.Fatal(err)
			}
		},
		Backup: func(t testing.TB) func() {
			saved := filepath.Join(s.Dir, "saved")
			s.Kill()
			if err := os.CopyFS(saved, os.DirFS(data(s))); err != nil {
				t.Fatal(err)
			}
			s.Restart(t)
			await(t, s)
			return func() {
				s.Kill()
				if err := errors.Join(os.RemoveAll(data(s)), os.CopyFS(data(s), os.DirFS(saved))); err != nil {
					t.Fatal(err)
				}
				s.Restart(t)
				await(t, s)
				c = connect(t, s.Address) // the server refuses clients that have seen more
			}
		},
		Numbers: map[string]func(t testing.TB) int64{
			"mzxid":       read(func(s *zk.Stat) int64 { return s.Mzxid }),
			"czxid":       read(func(s *zk.Stat) int64 { return s.Czxid }),
			"dataVersion": read(func(s *zk.Stat) int64 { return int64(s.Version) }),
		},
	})
}
