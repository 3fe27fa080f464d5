package show

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
)

type process struct {
	n      int // the n-th worker of its crew, from 1; 0 for a helper
	cmd    *exec.Cmd
	orders *json.Encoder
	stdin  io.Closer
	log    tail

	exited chan struct{} // closed after it has ended and its last report was handled
	err    error         // how it ended; read after exited

	// Guarded by the crew's mutex.
	stopping bool    // it has been told to end
	armed    Point   // the last stop order that it has taken
	reached  *report // where it has stopped, waiting
	outcome  *report // of the transaction in which it was stopped
	frozen   bool
	address  string // of its status page, or ""
}

// startProcess starts a worker and passes its reports to on, one at a time.
func startProcess(n int, config any, on func(*process, report)) (*process, error) {
	cmd, err := self(roleWorker)
	if err != nil {
		return nil, err
	}
	p := &process{n: n, cmd: cmd, exited: make(chan struct{})}
	detach(cmd)
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	followParent(cmd)
	cmd.Stderr = &p.log
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("show: start worker %d: %w", n, err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("show: start worker %d: %w", n, err)
	}
	if err := onSpawner(cmd.Start); err != nil {
		return nil, fmt.Errorf("show: start worker %d: %w", n, err)
	}
	p.stdin, p.orders = in, json.NewEncoder(in)
	go func() {
		err := p.read(out, on)
		if err != nil {
			_ = cmd.Process.Kill()
		}
		p.err = errors.Join(err, cmd.Wait())
		close(p.exited)
	}()
	if err := p.orders.Encode(config); err != nil {
		p.kill()
		return nil, fmt.Errorf("show: configure worker %d: %w", n, err)
	}
	return p, nil
}

func (p *process) read(out io.Reader, on func(*process, report)) error {
	for reports := json.NewDecoder(out); ; {
		var r report
		err := reports.Decode(&r)
		switch {
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF): // it has ended, perhaps in the middle of a report
			return nil
		case err != nil:
			return fmt.Errorf("it wrote what is no report: %w", err)
		}
		on(p, r)
	}
}

func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	<-p.exited
	_ = p.stdin.Close()
}

func (p *process) failure() error {
	how := "ended by itself"
	if p.err != nil {
		how = "ended: " + p.err.Error()
	}
	return fmt.Errorf("%s %s\n%s", p.name(), how, p.log.last(tailBytes))
}

// onSpawner runs f on the one thread that starts all processes. Linux sends a child's death signal
// when the thread that started it ends, so that thread must live on.
func onSpawner(f func() error) error {
	spawner.once.Do(func() {
		spawner.work = make(chan func())
		go func() {
			runtime.LockOSThread()
			for work := range spawner.work {
				work()
			}
		}()
	})
	err := make(chan error)
	spawner.work <- func() { err <- f() }
	return <-err
}

var spawner struct {
	once sync.Once
	work chan func()
}

type tail struct {
	mu  sync.Mutex
	buf []byte
}

const tailBytes = 4096

func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf = append(t.buf, b...)
	if extra := len(t.buf) - tailBytes; extra > 0 {
		t.buf = t.buf[extra:]
		if i := bytes.IndexByte(t.buf, '\n'); i >= 0 {
			t.buf = t.buf[i+1:]
		}
	}
	return len(b), nil
}

func (t *tail) last(n int) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	lines := strings.Split(strings.TrimRight(string(t.buf), "\n"), "\n")
	return "  " + strings.Join(lines[max(0, len(lines)-n):], "\n  ")
}

func (p *process) name() string {
	if p.n == 0 {
		return "the helper process"
	}
	return fmt.Sprintf("worker %d", p.n)
}
