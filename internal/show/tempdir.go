package show

import (
	"fmt"
	"io"
	"os"
	"os/exec"
)

// TempDir makes a directory. remove removes it; if this process ends before it calls remove, a
// sweeper process removes it. If keep is true, neither does.
func TempDir(pattern string, keep bool) (dir string, remove func(), err error) {
	dir, err = os.MkdirTemp("", pattern)
	if err != nil {
		return "", nil, fmt.Errorf("show: make a temporary directory: %w", err)
	}
	if keep {
		return dir, func() {}, nil
	}
	cmd, err := self(roleSweeper)
	if err != nil {
		return "", nil, err
	}
	detach(cmd)
	in, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err == nil {
		_, err = io.WriteString(in, dir+"\n")
	}
	if err != nil {
		_ = os.RemoveAll(dir)
		return "", nil, fmt.Errorf("show: start the process that cleans up: %w", err)
	}
	return dir, func() {
		_ = os.RemoveAll(dir)
		_ = cmd.Process.Kill() // it has nothing left to do
		_ = cmd.Wait()
	}, nil
}

func self(role string) (*exec.Cmd, error) {
	path, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("show: find this program to start it again: %w", err)
	}
	cmd := exec.Command(path)
	cmd.Env = append(os.Environ(), roleVariable+"="+role)
	return cmd, nil
}
