// Package proxy has a TCP proxy that cuts connections and loses requests or answers, for tests.
package proxy

import (
	"errors"
	"fmt"
	"net"
	"sync"
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
