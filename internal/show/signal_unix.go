//go:build unix

package show

import (
	"os"
	"os/exec"
	"syscall"
)

// detach keeps the terminal's signals from cmd, because the parent decides when cmd ends.
func detach(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }

func freeze(p *os.Process) error { return p.Signal(syscall.SIGSTOP) }
func thaw(p *os.Process) error   { return p.Signal(syscall.SIGCONT) }
