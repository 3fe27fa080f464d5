// Package servertest runs servers that are programs, for tests: on loopback, in a directory of the
// test's own, and gone when the test ends, also if the test binary is killed (on Linux).
package servertest

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/epochfence/epochfence/internal/servers/freeport"
	"github.com/epochfence/epochfence/internal/servers/subprocess"
	"github.com/epochfence/epochfence/internal/waits"
)

// patience bounds each wait for a server.
const patience = time.Minute

// Find returns the path of the first of names that is on PATH. Otherwise it skips t, or fails t if
// CI=true. how says where the program comes from.
func Find(t testing.TB, how string, names ...string) string {
	t.Helper()
	for _, name := range names {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	Absent(t, fmt.Sprintf("%s is not installed (%s)", names[0], how))
	return ""
}

// Jars returns a function that runs a class of the jars, and with the native libraries, in the
// directory that the environment variable env names. Without it, Jars does what [Absent] does.
func Jars(t testing.TB, env string, options ...string) (run func(class string, args ...string) *exec.Cmd) {
	t.Helper()
	libs := os.Getenv(env)
	if libs == "" {
		Absent(t, env+" is not set; make stores sets it")
	}
	java := Find(t, "Java 17", "java")
	options = append(options, "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djava.library.path="+libs, "-cp", filepath.Join(libs, "*"))
	return func(class string, args ...string) *exec.Cmd {
		return exec.Command(java, slices.Concat(options, []string{class}, args)...)
	}
}

// Absent skips t for a service that is not there, or fails t if CI=true.
func Absent(t testing.TB, why string) {
	t.Helper()
	if os.Getenv("CI") == "true" {
		t.Fatal(why)
	}
	t.Skip(why)
}

// Server is a program that listens at Address. Its methods are not safe for concurrent use.
type Server struct {
	Address string // host:port
	Dir     string // of the test's own

	command func(s *Server) *exec.Cmd
	running *exec.Cmd
	log     *os.File
}

// Start starts the program that command returns, which must listen at s.Address, and waits until it
// accepts connections. The end of its output is in t's log if t fails.
func Start(t testing.TB, command func(s *Server) *exec.Cmd) *Server {
	t.Helper()
	if testing.Short() {
		t.Skip("a server is not for -short")
	}
	ports, err := freeport.Take(1)
	if err != nil {
		t.Fatal(err)
	}
	s := &Server{Address: fmt.Sprintf("127.0.0.1:%d", ports[0]), Dir: t.TempDir(), command: command}
	if s.log, err = os.Create(filepath.Join(s.Dir, "log")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.Kill()
		_ = s.log.Close()
		if t.Failed() {
			t.Logf("the server said:\n%s", s.said())
		}
	})
	s.Restart(t)
	return s
}

// Port returns the port of Address.
func (s *Server) Port() string {
	_, port, _ := net.SplitHostPort(s.Address)
	return port
}

// Kill kills the server, unless it has ended.
func (s *Server) Kill() {
	if s.running != nil {
		_ = s.running.Process.Kill()
		_ = s.running.Wait()
		s.running = nil
	}
}

// Restart kills the server and starts it again at the same address, in the same directory.
func (s *Server) Restart(t testing.TB) {
	t.Helper()
	s.Kill()
	cmd := s.command(s)
	subprocess.DieWithParent(cmd)
	cmd.Dir, cmd.Stdout, cmd.Stderr = s.Dir, s.log, s.log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	s.running = cmd
	Await(t, cmd.Path+" accepts connections", func() bool {
		c, err := net.DialTimeout("tcp", s.Address, time.Second)
		if err != nil {
			return false
		}
		_ = c.Close()
		return true
	})
}

// Await polls until done, and fails t if that takes more than a minute. what says what it waits for.
func Await(t testing.TB, what string, done func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if !waits.Until(ctx, 20*time.Millisecond, done) {
		t.Fatalf("not within %v: %s", patience, what)
	}
}

// said returns the end of the server's output.
func (s *Server) said() string {
	b, _ := os.ReadFile(s.log.Name())
	const most = 8 << 10
	return strings.TrimSpace(string(b[max(0, len(b)-most):]))
}

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

// Freeze stops the program, unless it has ended, and returns once nothing of it runs.
func (s *Self) Freeze() { _ = subprocess.Freeze(s.cmd.Process) }

// Kill kills the program and waits for its end.
func (s *Self) Kill() {
	_ = s.cmd.Process.Kill()
	<-s.Ended
}
