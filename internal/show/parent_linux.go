package show

import (
	"os/exec"
	"syscall"
)

// followParent has the kernel kill cmd when its parent ends. That reaches a
// frozen worker too, which the end of its standard input does not.
func followParent(cmd *exec.Cmd) { cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL }
