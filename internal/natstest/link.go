package natstest

import (
	"net"
	"sync"
	"time"
)

// Link is the network between one process and its server. What is held in a
// direction arrives later, in order, unless the link is cut.
type Link struct {
	mu       sync.Mutex
	changed  *sync.Cond
	requests bool // held
	answers  bool
	rate     int          // bytes a second in each direction; 0: any number
	free     [2]time.Time // when each direction has carried what it was given
	wires    map[*wire]bool
}

// The directions of a link.
const (
	sent = iota
	received
)

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

// Limit sets how many bytes a second all connections that are made from now on carry together, in each
// direction. What waits for its turn is in the buffers of the operating system, as on a slow network.
func (l *Link) Limit(bytesPerSecond int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.rate = bytesPerSecond
}

const (
	chunk = 4 << 10                // what a limited link carries at once
	late  = 100 * time.Millisecond // that it makes up for, as timers are not exact

	slowBuffer = 64 << 10 // of the system, at the receiving end of a limited link
)

// piece is how many of so many bytes the link takes at once.
func (l *Link) piece(n int) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.rate > 0 {
		return min(n, chunk)
	}
	return n
}

// carry returns when the link has carried so many bytes, after those before them.
func (l *Link) carry(direction, n int) {
	l.mu.Lock()
	var wait time.Duration
	if l.rate > 0 {
		now := time.Now()
		if idle := now.Add(-late); l.free[direction].Before(idle) {
			l.free[direction] = idle
		}
		l.free[direction] = l.free[direction].Add(time.Duration(n) * time.Second / time.Duration(l.rate))
		wait = l.free[direction].Sub(now)
	}
	l.mu.Unlock()
	time.Sleep(wait)
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
	if tcp, ok := c.(*net.TCPConn); ok && l.rate > 0 {
		_ = tcp.SetReadBuffer(slowBuffer) // or megabytes have arrived that the link has not carried
	}
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
	n, err := w.Conn.Read(p[:w.link.piece(len(p))])
	w.link.carry(received, n)
	w.link.mu.Lock()
	defer w.link.mu.Unlock()
	for w.link.answers && !w.gone {
		w.link.changed.Wait()
	}
	return n, err
}

func (w *wire) Write(p []byte) (int, error) {
	w.link.carry(sent, len(p))
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
