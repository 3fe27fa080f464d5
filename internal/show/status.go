package show

import (
	"fmt"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/epochfence/epochfence/ops/statusz"
)

// serveStatus serves the status page of a group, as its database has it.
func serveStatus(address string, o statusz.Options) (stop func(), err error) {
	page, err := statusz.New(o)
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("-http: %w", err)
	}
	s := &http.Server{Handler: page, ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = s.Serve(l) }()
	return func() { _ = s.Close() }, nil
}

// portAbove returns the address n ports above another one, or "" for none.
func portAbove(address string, n int) string {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return ""
	}
	p, _ := strconv.Atoi(port)
	return net.JoinHostPort(host, strconv.Itoa(p+n))
}
