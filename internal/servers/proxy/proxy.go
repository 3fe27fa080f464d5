// Package proxy has a TCP proxy that cuts connections and loses requests or answers, for tests.
package proxy

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"
)

// Proxy stands in front of a server. Its methods are safe for concurrent use.
type Proxy struct {
	listener net.Listener
	target   func() (address string, ok bool)
	work     sync.WaitGroup

	mu     sync.Mutex
	thawed sync.Cond
	state  state
	armed  int // times that state was set
	struck int
	slow   time.Duration
	conns  map[net.Conn]bool
}

type state int

const (
	passing state = iota
	cut
	frozen
	losesRequest
	losesAnswer
)

// New returns a proxy that listens on loopback. For each connection it asks target where the server
// is, and closes the connection if target reports that there is none.
func New(target func() (address string, ok bool)) (*Proxy, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("proxy: %w", err)
	}
	p := &Proxy{listener: l, target: target, conns: map[net.Conn]bool{}}
	p.thawed.L = &p.mu
	p.work.Go(p.accept)
	return p, nil
}

// Between returns a proxy to the server whose address via is called with, and which via replaces by
// the proxy's own.
func Between() (p *Proxy, via func(address string) string, err error) {
	var mu sync.Mutex
	var server string
	p, err = New(func() (string, bool) {
		mu.Lock()
		defer mu.Unlock()
		return server, server != ""
	})
	return p, func(address string) string {
		mu.Lock()
		defer mu.Unlock()
		server = address
		return p.Address()
	}, err
}

// Address returns the address that clients connect to.
func (p *Proxy) Address() string { return p.listener.Addr().String() }

// Pass ends what Cut, Freeze, LoseRequest and LoseAnswer have begun.
func (p *Proxy) Pass() { p.set(passing) }

// Cut ends all connections and refuses new ones.
func (p *Proxy) Cut() { p.set(cut) }

// Freeze delivers nothing more in either direction, until Pass.
func (p *Proxy) Freeze() { p.set(frozen) }

// Slow delivers everything so much later, in either direction. It lasts until it is called with 0.
func (p *Proxy) Slow(by time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.slow = by
}

// LoseRequest ends the next connection on which the client sends something, and does not deliver it.
// After that it passes.
func (p *Proxy) LoseRequest() { p.set(losesRequest) }

// LoseAnswer delivers what clients send, and ends the next connection on which the server answers.
// After that it passes.
func (p *Proxy) LoseAnswer() { p.set(losesAnswer) }

// Struck returns how many connections LoseRequest and LoseAnswer have ended.
func (p *Proxy) Struck() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.struck
}

// Close ends the proxy and its connections.
func (p *Proxy) Close() {
	_ = p.listener.Close()
	p.Cut()
	p.work.Wait()
}

func (p *Proxy) set(to state) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.state = to
	p.armed++
	p.thawed.Broadcast()
	if to != cut {
		return
	}
	for c := range p.conns {
		_ = c.Close()
	}
}

func (p *Proxy) accept() {
	for {
		from, err := p.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue
		}
		p.work.Go(func() { p.serve(from) })
	}
}

func (p *Proxy) serve(from net.Conn) {
	defer func() { _ = from.Close() }()
	address, ok := p.target()
	if !ok || !p.keep(from) {
		return
	}
	defer p.drop(from)
	to, err := net.Dial("tcp", address)
	if err != nil {
		return
	}
	defer func() { _ = to.Close() }()
	if !p.keep(to) {
		return
	}
	defer p.drop(to)
	(&link{proxy: p}).serve(from, to)
}

// keep notes a connection, unless the proxy is cut.
func (p *Proxy) keep(c net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.state == cut {
		return false
	}
	p.conns[c] = true
	return true
}

func (p *Proxy) drop(c net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, c)
}

// link is a connection from a client and the one to the server.
type link struct {
	proxy *Proxy
	asked int // the value of proxy.armed when the client last sent something; guarded by proxy.mu
}

// serve copies both ways until either connection ends.
func (l *link) serve(client, server net.Conn) {
	var both sync.WaitGroup
	both.Go(func() { pipe(server, client, l.request) })
	both.Go(func() { pipe(client, server, l.answer) })
	both.Wait()
}

// pipe copies what pass lets through, and then ends both connections.
func pipe(to, from net.Conn, pass func() bool) {
	defer func() {
		_ = to.Close()
		_ = from.Close()
	}()
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		if n > 0 {
			if !pass() {
				return
			}
			if _, err := to.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// request reports whether to deliver what the client has sent.
func (l *link) request() bool {
	l.proxy.delay()
	l.proxy.mu.Lock()
	defer l.proxy.mu.Unlock()
	l.proxy.waitWhileFrozen()
	switch l.proxy.state {
	case losesRequest:
		return l.proxy.strikes()
	case losesAnswer:
		l.asked = l.proxy.armed
	}
	return true
}

// answer reports whether to deliver what the server has sent.
func (l *link) answer() bool {
	l.proxy.delay()
	l.proxy.mu.Lock()
	defer l.proxy.mu.Unlock()
	l.proxy.waitWhileFrozen()
	if l.proxy.state == losesAnswer && l.asked == l.proxy.armed {
		return l.proxy.strikes()
	}
	return true
}

func (p *Proxy) delay() {
	p.mu.Lock()
	by := p.slow
	p.mu.Unlock()
	if by > 0 {
		<-time.After(by)
	}
}

func (p *Proxy) waitWhileFrozen() {
	for p.state == frozen {
		p.thawed.Wait()
	}
}

func (p *Proxy) strikes() bool {
	p.struck++
	p.state = passing
	return false
}

type delayed struct {
	net.Conn
	by   time.Duration
	came chan arrival
	now  arrival

	open  context.Context
	close context.CancelFunc
}

type arrival struct {
	data []byte
	err  error
	at   time.Time
}

// Delay returns a connection that reads from c what arrived there so much earlier.
func Delay(c net.Conn, by time.Duration) net.Conn {
	d := &delayed{Conn: c, by: by, came: make(chan arrival, 1<<12)}
	d.open, d.close = context.WithCancel(context.Background())
	go d.receive()
	return d
}

func (d *delayed) receive() {
	for {
		a := arrival{data: make([]byte, 4<<10)}
		n, err := d.Conn.Read(a.data)
		a.data, a.err, a.at = a.data[:n], err, time.Now()
		select {
		case d.came <- a:
		case <-d.open.Done():
			return
		}
		if err != nil {
			return
		}
	}
}

func (d *delayed) Read(p []byte) (int, error) {
	if len(d.now.data) == 0 && d.now.err == nil {
		select {
		case d.now = <-d.came:
		case <-d.open.Done():
			return 0, net.ErrClosed
		}
		timer := time.NewTimer(time.Until(d.now.at.Add(d.by)))
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-d.open.Done():
			return 0, net.ErrClosed
		}
	}
	n := copy(p, d.now.data)
	if d.now.data = d.now.data[n:]; n > 0 {
		return n, nil
	}
	return 0, d.now.err
}

func (d *delayed) Close() error {
	d.close()
	return d.Conn.Close()
}
