//go:build !linux

package servertest

import "os/exec"

// DieWithParent does nothing on systems without a death signal. If the test binary is killed there,
// the server keeps running.
func DieWithParent(*exec.Cmd) {}
