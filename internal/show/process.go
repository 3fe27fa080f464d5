package show

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
)

type process struct {
	name   string
	cmd    *exec.Cmd
	orders *json.Encoder // guarded by the crew's mutex
	log    tail          // complete once it has ended
	exited chan struct{} // closed after it has ended and its last report was handled

	// Guarded by the crew's mutex.
	stopping bool   // it has been told to end
	subject  string // of what it was stopped in
	outcome  string // of that; "" until then
}

// role is what a worker is told at its start, as JSON in its environment.
type role struct {
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

// kill returns once the process has ended. It fails if it had ended before.
func (p *process) kill() error {
	err := p.cmd.Process.Kill()
	<-p.exited
	return err
}

// tail keeps the end of what a process writes.
type tail []byte

func (t *tail) Write(b []byte) (int, error) {
	all := append(*t, b...)
	*t = all[max(0, len(all)-2048):]
	return len(b), nil
}
