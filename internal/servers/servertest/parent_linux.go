package servertest

import (
	"os/exec"
	"syscall"
)

// DieWithParent makes the kernel kill the child when the thread that starts it ends (prctl(2),
// PR_SET_PDEATHSIG).
func DieWithParent(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
