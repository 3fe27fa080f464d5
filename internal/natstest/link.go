package natstest

import (
	"net"
	"sync"
)

// Link is the network between one process and its server. What is held in a
// direction arrives later, in order, unless the link is cut.
type Link struct {
	mu       sync.Mutex
	changed  *sync.Cond
	requests bool // held
	answers  bool
	wires    map[*wire]bool
}

// NewLink returns a link that lets everything through. It is given to
// nats.SetCustomDialer.
func NewLink() *Link {
	l := &Link{wires: map[*wire]bool{}}
	l.changed = sync.NewCond(&l.mu)
	return l
}

// Hold says what does not get through from now on.
func (l *Link) Hold(requests, answers bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.requests, l.answers = requests, answers
	if !requests {
		for w := range l.wires {
			w.flush()
		}
	}
	l.changed.Broadcast()
}

// Cut ends all connections. What was held is lost.
func (l *Link) Cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for w := range l.wires {
		w.held, w.gone = nil, true
		_ = w.Conn.Close()
		delete(l.wires, w)
	}
	l.changed.Broadcast()
}

// Dial is nats.CustomDialer's.
func (l *Link) Dial(network, address string) (net.Conn, error) {
	c, err := net.Dial(network, address)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	w := &wire{Conn: c, link: l}
	l.wires[w] = true
	return w, nil
}

type wire struct {
	net.Conn
	link *Link
	held []byte // guarded by the link's mutex
	gone bool
}

func (w *wire) Read(p []byte) (int, error) {
	n, err := w.Conn.Read(p)
	w.link.mu.Lock()
	defer w.link.mu.Unlock()
	for w.link.answers && !w.gone {
		w.link.changed.Wait()
	}
	return n, err
}

func (w *wire) Write(p []byte) (int, error) {
	w.link.mu.Lock()
	defer w.link.mu.Unlock()
	if w.link.requests {
		w.held = append(w.held, p...)
		return len(p), nil
	}
	return w.Conn.Write(p)
}

func (w *wire) flush() {
	_, _ = w.Conn.Write(w.held) // a connection that is gone loses what was sent
	w.held = nil
}

func (w *wire) Close() error {
	w.link.mu.Lock()
	w.gone = true
	delete(w.link.wires, w)
	w.link.changed.Broadcast()
	w.link.mu.Unlock()
	return w.Conn.Close()
}
