//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package queue_test

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

func TestWhoMeetsAnotherLookWaitsAgain(t *testing.T) {
	file := filepath.Join(t.TempDir(), "a.db")
	q := open(t, file)
	look, err := os.OpenFile(file+"-queue", os.O_CREATE|os.O_RDONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = look.Close() }()
	if err := syscall.Flock(int(look.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	if q.Wait() != nil {
		t.Error("it waits, although nobody can see that")
	}
	if err := syscall.Flock(int(look.Fd()), syscall.LOCK_UN); err != nil {
		t.Fatal(err)
	}
	done := q.Wait()
	if done == nil {
		t.Fatal("it does not wait, although nobody looks any more")
	}
	done()
}
