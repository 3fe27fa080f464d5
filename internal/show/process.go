package show

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
)

type process struct {
	name   string
	cmd    *exec.Cmd
	orders *json.Encoder // guarded by the crew's mutex
	log    tail
	exited chan struct{} // closed after it has ended and its last report was handled

	// Guarded by the crew's mutex.
	stopping bool   // it has been told to end
	over     bool   // it has ended
	subject  string // of what it was stopped in
	outcome  string // of that; "" until then
}

// role is what a worker is told at its start, as JSON in its environment.
type role struct {
	Worker   string // its name
	Column   string
	Database string // of the column: a postgres:// URL or the path of a SQLite file
	Schema   string // in PostgreSQL
	HTTP     string // where the parent serves the status page, or empty
	Config   json.RawMessage
}

// startProcess starts a worker. It passes the reports to on, one at a time, and at last calls ended with the
// reason.
func startProcess(name string, r role, config any, on func(*process, report), ended func(*process, error)) (*process, error) {
	path, err := os.Executable()
	if err != nil {
		return nil, err
	}
	r.Worker = name
	if r.Config, err = json.Marshal(config); err != nil {
		return nil, err
	}
	told, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(path)
	cmd.Env = append(os.Environ(), roleVariable+"="+string(told))
	p := &process{name: name, cmd: cmd, exited: make(chan struct{})}
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
			err = fmt.Errorf("it wrote a line that is not a report: %w", err)
		}
		ended(p, errors.Join(err, cmd.Wait()))
	}()
	return p, nil
}

func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	<-p.exited
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
	return string(t.buf)
}
