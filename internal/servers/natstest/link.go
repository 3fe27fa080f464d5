package natstest

import (
	"net"
	"sync"
	"time"

	"github.com/epochfence/epochfence/internal/servers/proxy"
)

// Link is the network between one process and its server. Held data arrives later, in order, unless
// the link is cut.
type Link struct {
	mu       sync.Mutex
	changed  *sync.Cond
	requests bool // whether they are held
	answers  bool
	rate     int // bytes per second in each direction; 0: no limit
	delay    time.Duration
	free     [2]time.Time // when each direction will have carried its data
	wires    map[*wire]bool
}

const (
	sent = iota
	received
)

// NewLink returns an open link, for nats.SetCustomDialer.
func NewLink() *Link {
	l := &Link{wires: map[*wire]bool{}}
	l.changed = sync.NewCond(&l.mu)
	return l
}

// Hold holds requests, answers or both from now on, and lets the rest through.
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

// Limit limits the bytes per second, in each direction, of all connections made from now on
// together. Waiting data is in the buffers of the operating system, as on a slow network.
func (l *Link) Limit(bytesPerSecond int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.rate = bytesPerSecond
}

// Delay delivers what the server sends so much later, on all connections made from now on.
func (l *Link) Delay(roundTrip time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.delay = roundTrip
}

const (
	chunk = 4 << 10                // the unit in which a limited link carries data
	late  = 100 * time.Millisecond // the delay that a limited link makes up for, because timers are inexact

	slowBuffer = 64 << 10 // the system's read buffer on a limited link
)

func (l *Link) piece(n int) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.rate > 0 {
		return min(n, chunk)
	}
	return n
}

// carry returns when the link has carried n more bytes, after all earlier ones.
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

// Cut ends all connections. Held data is lost.
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

// Dial implements nats.CustomDialer.
func (l *Link) Dial(network, address string) (net.Conn, error) {
	c, err := net.Dial(network, address)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if tcp, ok := c.(*net.TCPConn); ok && l.rate > 0 {
		_ = tcp.SetReadBuffer(slowBuffer) // otherwise the system receives megabytes that the link has not carried
	}
	if l.delay > 0 {
		c = proxy.Delay(c, l.delay)
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
	_, _ = w.Conn.Write(w.held) // a closed connection loses sent data
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
