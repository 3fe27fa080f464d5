package show

import (
	"fmt"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/epochfence/epochfence/operate/statusz"
)

// serveStatus serves the status page of a group, as its database has it.
func serveStatus(address string, o statusz.Options) (*http.Server, error) {
	page, err := statusz.New(o)
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("-http: %w", err)
	}
	return Serve(l, page), nil
}

// serveMetrics serves the metrics of a worker at the first free port above the status page's.
func serveMetrics(address string, metrics http.Handler) {
	host, port, _ := net.SplitHostPort(address)
	first, _ := strconv.Atoi(port)
	for n := range maxWorkers {
		if l, err := net.Listen("tcp", net.JoinHostPort(host, strconv.Itoa(first+1+n))); err == nil {
			Serve(l, metrics)
			return
		}
	}
}

// Serve serves requests until the server is closed.
func Serve(l net.Listener, h http.Handler) *http.Server {
	s := &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = s.Serve(l) }()
	return s
}
