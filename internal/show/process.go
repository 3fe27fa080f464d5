package show

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
)

type process struct {
	n      int // the n-th worker of its crew, from 1
	cmd    *exec.Cmd
	orders *json.Encoder // guarded by the crew's mutex
	log    tail

	exited chan struct{} // closed after it has ended and its last report was handled
	err    error         // how it ended; read after exited

	// Guarded by the crew's mutex.
	stopping bool   // it has been told to end
	subject  string // of what it was stopped in
	outcome  string // of that; "" until then
}

// startProcess starts a worker and passes its reports to on, one at a time.
func startProcess(n int, config any, http string, on func(*process, report)) (*process, error) {
	path, err := os.Executable()
	if err != nil {
		return nil, err
	}
	settings, err := json.Marshal(config)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(path)
	cmd.Env = append(os.Environ(), configVariable+"="+string(settings), httpVariable+"="+http)
	p := &process{n: n, cmd: cmd, exited: make(chan struct{})}
	followParent(cmd)
	cmd.Stderr = &p.log
	in, inErr := cmd.StdinPipe()
	out, outErr := cmd.StdoutPipe()
	if err := errors.Join(inErr, outErr); err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p.orders = json.NewEncoder(in)
	go func() {
		var err error
		for reports := json.NewDecoder(out); err == nil; {
			var r report
			if err = reports.Decode(&r); err == nil {
				on(p, r)
			}
		}
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) { // it has ended, perhaps in the middle of a report
			err = nil
		} else {
			_ = cmd.Process.Kill()
			err = fmt.Errorf("it wrote what is no report: %w", err)
		}
		p.err = errors.Join(err, cmd.Wait())
		close(p.exited)
	}()
	return p, nil
}

func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	<-p.exited
}

func (p *process) failure() error {
	how := "ended by itself"
	if p.err != nil {
		how = "ended: " + p.err.Error()
	}
	return fmt.Errorf("worker %d %s\n%s", p.n, how, p.log.String())
}

// tail keeps the end of what a process writes.
type tail struct {
	mu  sync.Mutex
	buf []byte
}

func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf = append(t.buf, b...)
	t.buf = t.buf[max(0, len(t.buf)-2048):]
	return len(b), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return "  " + strings.ReplaceAll(strings.TrimSpace(string(t.buf)), "\n", "\n  ")
}
