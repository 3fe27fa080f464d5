package kafkasource

import (
	"context"
	"net"
	"sync"

	"github.com/twmb/franz-go/pkg/kfake"
)

// link is one process's network. Frozen, it keeps connections open and lets
// nothing through, as a paused machine or a cut cable does.
type link struct {
	net *kfake.VirtualNetwork

	mu     sync.Mutex
	frozen chan struct{} // closed at thaw; nil while it flows
}

func (l *link) freeze() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.frozen == nil {
		l.frozen = make(chan struct{})
	}
}

func (l *link) thaw() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.frozen != nil {
		close(l.frozen)
		l.frozen = nil
	}
}

func (l *link) wait(ctx context.Context) error {
	l.mu.Lock()
	frozen := l.frozen
	l.mu.Unlock()
	if frozen == nil {
		return nil
	}
	select {
	case <-frozen:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (l *link) dial(ctx context.Context, network, address string) (net.Conn, error) {
	if err := l.wait(ctx); err != nil {
		return nil, err
	}
	far, err := l.net.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	near, inner := net.Pipe()
	pump := func(dst, src net.Conn) {
		defer dst.Close()
		defer src.Close()
		buf := make([]byte, 64<<10)
		for {
			n, err := src.Read(buf)
			_ = l.wait(context.Background())
			if n > 0 {
				if _, err := dst.Write(buf[:n]); err != nil {
					return
				}
			}
			if err != nil {
				return
			}
		}
	}
	go pump(far, inner)
	go pump(inner, far)
	return near, nil
}
