// Package freeport finds ports for servers that are stopped and started again at the
// same address.
package freeport

import (
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
)

const lowest, count = 15000, 15000

// reserved marks what this process has taken, for as long as it lives: nobody here talks UDP,
// so that others who take ports see that one is not to be had before its server listens, and
// while it is stopped.
var reserved struct {
	sync.Mutex
	marks []net.PacketConn
}

// Take returns n ports of 127.0.0.1 on which nothing listens at the moment, and which nobody
// else takes while this process lives.
// They lie below the range from which systems choose the local port of an outgoing
// connection: a client that keeps dialling a stopped server at a port in that range
// can end up connected to itself, and then holds the port.
func Take(n int) (ports []int, err error) {
	for range 1000 {
		port := lowest + rand.IntN(count)
		if err = take(fmt.Sprintf("127.0.0.1:%d", port)); err != nil {
			continue
		}
		if ports = append(ports, port); len(ports) == n {
			return ports, nil
		}
	}
	return nil, fmt.Errorf("freeport: no free loopback ports: %w", err)
}

func take(addr string) error {
	mark, err := net.ListenPacket("udp", addr)
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", addr)
	if err != nil {
		_ = mark.Close()
		return err
	}
	_ = l.Close()
	reserved.Lock()
	defer reserved.Unlock()
	reserved.marks = append(reserved.marks, mark) // a connection that nobody refers to is closed
	return nil
}
