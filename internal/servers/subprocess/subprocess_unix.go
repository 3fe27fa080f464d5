//go:build unix && !linux

package subprocess

import (
	"os"
	"os/exec"
	"syscall"
)

// DieWithParent does nothing: only Linux has a death signal. If this process is killed, its children
// are left.
func DieWithParent(*exec.Cmd) {}

// Freeze does not wait until p stands. A wait for that would take the end of p, too.
func Freeze(p *os.Process) error { return p.Signal(syscall.SIGSTOP) }

// Thaw lets p go on.
func Thaw(p *os.Process) error { return p.Signal(syscall.SIGCONT) }
