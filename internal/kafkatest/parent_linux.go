package kafkatest

import (
	"os/exec"
	"syscall"
)

// dieWithParent makes the kernel kill the child when the thread that starts it ends (prctl(2),
// PR_SET_PDEATHSIG).
func dieWithParent(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
