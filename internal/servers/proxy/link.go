package proxy

import (
	"net"
	"sync"
)

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
	l.proxy.mu.Lock()
	defer l.proxy.mu.Unlock()
	l.proxy.waitWhileFrozen()
	if l.proxy.state == losesAnswer && l.asked == l.proxy.armed {
		return l.proxy.strikes()
	}
	return true
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
