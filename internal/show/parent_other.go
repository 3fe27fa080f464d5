//go:build !linux

package show

import "os/exec"

// followParent does nothing: only Linux can.
func followParent(*exec.Cmd) {}
