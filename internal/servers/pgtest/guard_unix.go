//go:build unix

package pgtest

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/user"
	"strconv"
	"sync"
	"syscall"
)

// guardScript reads the ID of the process to guard: a line for each change, 0 for none. Its
// standard input ends when the process that started it ends, for any reason. Then it stops the
// guarded process and removes the directory.
const guardScript = `
pid=0
while read -r line; do pid=$line; done
if [ "$pid" != 0 ]; then
	kill -QUIT "$pid" 2>/dev/null
	n=0
	while [ "$n" -lt 100 ] && kill -0 "$pid" 2>/dev/null; do sleep 0.05; n=$((n + 1)); done
	kill -KILL "$pid" 2>/dev/null
fi
rm -rf -- "$1"
`

// guard is a process that outlives this one and cleans up after it.
type guard struct {
	cmd   *exec.Cmd
	mu    sync.Mutex
	stdin io.WriteCloser
}

func newGuard(dir string) (*guard, error) {
	cmd := exec.Command("/bin/sh", "-c", guardScript, "pgtest-guard", dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // not in the process group that Ctrl-C ends
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("pgtest: guard: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("pgtest: guard: %w", err)
	}
	return &guard{cmd: cmd, stdin: stdin}, nil
}

func (g *guard) watch(pid int) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	_, err := fmt.Fprintln(g.stdin, pid)
	return err
}

func (g *guard) close() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	_ = g.stdin.Close()
	return g.cmd.Wait()
}

type process struct {
	cmd    *exec.Cmd
	exited chan struct{} // closed when it has ended
}

// start runs a server as the unprivileged user and appends its output to log.
func (g *guard) start(log *os.File, name string, args ...string) (*process, error) {
	cmd := unprivileged(exec.Command(name, args...))
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &process{cmd: cmd, exited: make(chan struct{})}
	if err := g.watch(cmd.Process.Pid); err != nil {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		return nil, fmt.Errorf("pgtest: guard: %w", err)
	}
	go func() {
		_ = cmd.Wait()
		_ = g.watch(0) // the system may soon reuse the ID
		close(p.exited)
	}()
	return p, nil
}

func (p *process) signal(s os.Signal) error { return p.cmd.Process.Signal(s) }

const (
	sigFast      = syscall.SIGINT  // PostgreSQL's fast shutdown
	sigImmediate = syscall.SIGQUIT // PostgreSQL's immediate shutdown
)

// unprivileged makes cmd run in a process group of its own and in the root directory. If this
// process is root, cmd runs as the user nobody.
func unprivileged(cmd *exec.Cmd) *exec.Cmd {
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if uid, gid, ok := serverUser(); ok {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uid, Gid: gid}
	}
	return cmd
}

// serverUser returns the user that servers run as. ok is false if it is this process's user.
func serverUser() (uid, gid uint32, ok bool) {
	if os.Geteuid() != 0 {
		return 0, 0, false
	}
	uid, gid = 65534, 65534
	if u, err := user.Lookup("nobody"); err == nil {
		if id, err := strconv.ParseUint(u.Uid, 10, 32); err == nil && id != 0 {
			uid = uint32(id)
		}
		if id, err := strconv.ParseUint(u.Gid, 10, 32); err == nil && id != 0 {
			gid = uint32(id)
		}
	}
	return uid, gid, true
}

func serverDir(parent, pattern string) (string, error) {
	dir, err := os.MkdirTemp(parent, pattern)
	if err != nil {
		return "", err
	}
	if err := ownByServer(dir); err != nil {
		_ = os.Remove(dir)
		return "", err
	}
	return dir, nil
}

func ownByServer(name string) error {
	uid, gid, ok := serverUser()
	if !ok {
		return nil
	}
	return os.Chown(name, int(uid), int(gid))
}

func lockFile(path string) (release func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	for {
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX)
		if !errors.Is(err, syscall.EINTR) {
			break
		}
	}
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return func() { _ = f.Close() }, nil
}

// ownedByUs reports whether only this user can have written to dir.
func ownedByUs(dir string) bool {
	info, err := os.Lstat(dir)
	if err != nil || !info.IsDir() || info.Mode().Perm()&0o022 != 0 {
		return false
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	return ok && int(stat.Uid) == os.Geteuid()
}
