//go:build unix

package show

import (
	"os"
	"syscall"
)

// freeze returns once no thread of p, a child, runs any more. The signal alone says nothing of that: a
// thread that is inside a system call ends it first, and may get a lock by it.
func freeze(p *os.Process) error {
	if err := p.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	return awaitStopped(p)
}

func thaw(p *os.Process) error { return p.Signal(syscall.SIGCONT) }
