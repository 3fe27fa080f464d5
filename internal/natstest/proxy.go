package natstest

import (
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
)

// proxy stands in front of a listener and can cut its clients off. Its methods are safe for
// concurrent use.
type proxy struct {
	listener net.Listener
	target   func() (address string, ok bool)
	work     sync.WaitGroup

	mu    sync.Mutex
	cut   bool
	conns map[net.Conn]bool
}

func newProxy(target func() (string, bool)) (*proxy, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("natstest: %w", err)
	}
	p := &proxy{listener: l, target: target, conns: map[net.Conn]bool{}}
	p.work.Go(p.accept)
	return p, nil
}

func (p *proxy) address() string { return p.listener.Addr().String() }

func (p *proxy) accept() {
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

func (p *proxy) serve(from net.Conn) {
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
	var both sync.WaitGroup
	pipe := func(to, from net.Conn) {
		_, _ = io.Copy(to, from)
		_ = to.Close()
		_ = from.Close()
	}
	both.Go(func() { pipe(to, from) })
	both.Go(func() { pipe(from, to) })
	both.Wait()
}

// keep notes a connection, unless the proxy is cut.
func (p *proxy) keep(c net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.cut {
		p.conns[c] = true
	}
	return !p.cut
}

func (p *proxy) drop(c net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, c)
}

// set cuts the proxy, which ends all connections and refuses new ones, or heals it.
func (p *proxy) set(cut bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cut = cut
	if !cut {
		return
	}
	for c := range p.conns {
		_ = c.Close()
	}
}

func (p *proxy) close() {
	_ = p.listener.Close()
	p.set(true)
	p.work.Wait()
}
