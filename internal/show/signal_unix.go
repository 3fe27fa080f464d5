//go:build unix

package show

import (
	"os"
	"os/exec"
	"syscall"
)

// detach keeps the signals that a terminal sends to its foreground processes
// from cmd: the parent decides when it ends.
func detach(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }

func freeze(p *os.Process) error { return p.Signal(syscall.SIGSTOP) }
func thaw(p *os.Process) error   { return p.Signal(syscall.SIGCONT) }
