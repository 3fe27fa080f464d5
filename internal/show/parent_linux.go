package show

import (
	"os/exec"
	"syscall"
)

// followParent makes the kernel kill cmd when its parent ends. That also ends a frozen worker,
// which does not notice the end of its standard input.
func followParent(cmd *exec.Cmd) { cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL }
