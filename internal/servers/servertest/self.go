package servertest

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"testing"
)

// Self is the test binary, started once more as another program, which TestMain chooses by the
// environment.
type Self struct {
	Lines  chan string // of its standard output; closed at the end of it
	Input  io.Writer   // its standard input
	Ended  chan struct{}
	Result error // once Ended is closed

	cmd *exec.Cmd
}

// StartSelf starts the test binary with these variables in its environment. It is killed when t ends.
func StartSelf(t testing.TB, env ...string) *Self {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), env...)
	cmd.Stderr = os.Stderr
	return StartProgram(t, cmd)
}

// StartProgram starts another program in the same way.
func StartProgram(t testing.TB, cmd *exec.Cmd) *Self {
	t.Helper()
	check := func(err error) {
		if err != nil {
			t.Helper()
			t.Fatal(err)
		}
	}
	in, err := cmd.StdinPipe()
	check(err)
	out, err := cmd.StdoutPipe()
	check(err)
	check(cmd.Start())
	s := &Self{Lines: make(chan string, 1<<16), Input: in, Ended: make(chan struct{}), cmd: cmd}
	go func() {
		for lines := bufio.NewScanner(out); lines.Scan(); {
			s.Lines <- lines.Text()
		}
		close(s.Lines)
		s.Result = cmd.Wait()
		close(s.Ended)
	}()
	t.Cleanup(s.Kill)
	return s
}

// Signal sends a signal to the program, unless it has ended.
func (s *Self) Signal(sig os.Signal) { _ = s.cmd.Process.Signal(sig) }

// Kill kills the program and waits for its end.
func (s *Self) Kill() {
	_ = s.cmd.Process.Kill()
	<-s.Ended
}
