package kafkasource_test

import (
	"context"
	"net"
	"sync"
)

// link is a process's way to the network. While it is frozen, everything on it
// waits, as when the process is stopped: nothing is lost and nothing is refused.
type link struct {
	mu   sync.Mutex
	open chan struct{} // closed while bytes may pass
}

func newLink() *link {
	l := &link{open: make(chan struct{})}
	close(l.open)
	return l
}

func (l *link) freeze() {
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case <-l.open:
		l.open = make(chan struct{})
	default:
	}
}

func (l *link) thaw() {
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case <-l.open:
	default:
		close(l.open)
	}
}

func (l *link) passable() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.open
}

// dial is a [kgo.Dialer].
func (l *link) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	select {
	case <-l.passable():
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	broker, err := new(net.Dialer).DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	client, inner := net.Pipe()
	go l.carry(broker, inner)
	go l.carry(inner, broker)
	return client, nil
}

// carry copies from one end to the other, and holds what it has while the link
// is frozen.
func (l *link) carry(to, from net.Conn) {
	defer to.Close()
	defer from.Close()
	b := make([]byte, 32<<10)
	for {
		n, err := from.Read(b)
		<-l.passable()
		if n > 0 {
			if _, err := to.Write(b[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}
