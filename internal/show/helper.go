package show

import (
	"context"
	"fmt"
	"sync"
	"syscall"
	"time"
)

// Helper is a process that incidents do not strike, such as the receiver of requests. Like a worker
// it ends with its parent.
type Helper struct {
	// Address is the address from [Stage.Ready].
	Address string

	p *process
}

// StartHelper starts this program in the role of a worker, and waits until it is ready. Its
// configuration must identify it as a helper.
func StartHelper(ctx context.Context, config any) (*Helper, error) {
	ready := make(chan string, 1)
	var once sync.Once
	p, err := startProcess(0, config, func(_ *process, r report) {
		if r.Kind == reportReady {
			once.Do(func() { ready <- r.Text })
		}
	})
	if err != nil {
		return nil, err
	}
	timer := time.NewTimer(startLimit)
	defer timer.Stop()
	select {
	case address := <-ready:
		return &Helper{Address: address, p: p}, nil
	case <-p.exited:
		return nil, p.failure()
	case <-ctx.Done():
		err = context.Cause(ctx)
	case <-timer.C:
		err = fmt.Errorf("show: a helper process is not ready after %v", startLimit)
	}
	p.kill()
	return nil, err
}

// Stop asks the process to end, and kills it after grace.
func (h *Helper) Stop(grace time.Duration) error {
	_ = h.p.cmd.Process.Signal(syscall.SIGTERM)
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-h.p.exited:
		_ = h.p.stdin.Close()
		if h.p.err != nil {
			return h.p.failure()
		}
		return nil
	case <-timer.C:
		h.p.kill()
		return fmt.Errorf("show: a helper process did not end within %v, and was killed\n%s", grace, h.p.log.last(tailBytes))
	}
}
