//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package queue

import (
	"errors"
	"os"
	"strings"
	"syscall"
)

// Shared reports whether processes know of each other on this system.
const Shared = true

// open opens the file to lock. It creates the file with the permissions of the database.
func open(path string) (*os.File, error) {
	mode := os.FileMode(0o600)
	if info, err := os.Stat(strings.TrimSuffix(path, "-queue")); err == nil {
		mode = info.Mode().Perm()
	}
	return os.OpenFile(path, os.O_CREATE|os.O_RDONLY, mode)
}

// share takes a shared lock on the file, until release is called. It returns nil if another process
// has the exclusive lock of shared, which lasts for a moment.
func share(path string) (release func()) {
	f, err := open(path)
	if err != nil {
		return func() {}
	}
	if errors.Is(syscall.Flock(int(f.Fd()), syscall.LOCK_SH|syscall.LOCK_NB), syscall.EWOULDBLOCK) {
		_ = f.Close()
		return nil
	}
	return func() { _ = f.Close() }
}

// shared reports whether any process has a shared lock on the file.
func shared(path string) bool {
	f, err := open(path)
	if err != nil {
		return false
	}
	defer func() { _ = f.Close() }()
	return errors.Is(syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB), syscall.EWOULDBLOCK)
}
