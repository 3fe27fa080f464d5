// Package freeport finds ports for servers that are stopped and started again at the
// same address.
package freeport

import (
	"fmt"
	"math/rand/v2"
	"net"
)

const lowest, count = 15000, 15000

// Take returns n different ports of 127.0.0.1 on which nothing listens at the moment.
// They lie below the range from which systems choose the local port of an outgoing
// connection: a client that keeps dialling a stopped server at a port in that range
// can end up connected to itself, and then holds the port.
func Take(n int) (ports []int, err error) {
	for range 1000 {
		port := lowest + rand.IntN(count)
		l, listenErr := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if listenErr != nil {
			err = listenErr
			continue
		}
		defer func() { _ = l.Close() }() // held until all n are found, so that they differ
		if ports = append(ports, port); len(ports) == n {
			return ports, nil
		}
	}
	return nil, fmt.Errorf("freeport: no free loopback ports: %w", err)
}
