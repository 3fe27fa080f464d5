//go:build unix && !linux

package show

import (
	"os"
	"os/exec"
	"syscall"
)

// followParent does nothing: only Linux has a death signal.
func followParent(*exec.Cmd) {}

// freeze does not wait until p stands. A wait for that would take the end of p, too.
func freeze(p *os.Process) error { return p.Signal(syscall.SIGSTOP) }
func thaw(p *os.Process) error   { return p.Signal(syscall.SIGCONT) }
