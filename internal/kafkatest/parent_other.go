//go:build !linux

package kafkatest

import "os/exec"

// dieWithParent does nothing where the system has no such thing. A test binary
// that is killed then leaves its broker running.
func dieWithParent(*exec.Cmd) {}
