//go:build !linux

package show

import "os/exec"

// followParent does nothing: only Linux has a death signal.
func followParent(*exec.Cmd) {}
