package show

import (
	"os/exec"
	"syscall"
)

// followParent makes the kernel kill cmd when its parent ends. That also ends a frozen worker,
// which does not notice the end of its standard input.
//
// The kernel sends the signal when the thread ends that started cmd. Go keeps its threads, except
// those on which a goroutine has ended without runtime.UnlockOSThread. The shows have none.
func followParent(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
