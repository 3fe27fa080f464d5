//go:build !unix

package subprocess

import (
	"errors"
	"os"
	"os/exec"
)

var errNoStop = errors.New("this system cannot freeze a process (SIGSTOP); use Linux, macOS or WSL")

// DieWithParent does nothing: only Linux has a death signal.
func DieWithParent(*exec.Cmd) {}

// Freeze fails.
func Freeze(*os.Process) error { return errNoStop }

// Thaw fails.
func Thaw(*os.Process) error { return errNoStop }
