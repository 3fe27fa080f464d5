//go:build !linux

package kafkatest

import "os/exec"

// dieWithParent does nothing on systems without a death signal. If the test binary is killed there,
// its broker keeps running.
func dieWithParent(*exec.Cmd) {}
