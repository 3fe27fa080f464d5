//go:build !unix

package show

import (
	"errors"
	"os"
	"os/exec"
)

var errNoStop = errors.New("show: this system cannot freeze a process (SIGSTOP); use Linux, macOS or WSL")

func followParent(*exec.Cmd)   {}
func freeze(*os.Process) error { return errNoStop }
func thaw(*os.Process) error   { return errNoStop }
