package show

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/epochfence/epochfence/ops/statusz"
)

// serve serves a status page and metrics of this process until the process ends, and reports the
// address.
func (s *Stage) serve() {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Fprintln(os.Stderr, "show: serve the status page of a worker:", err)
		return
	}
	page, err := statusz.New(statusz.Options{Title: "this worker", Stats: s.Stats})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return
	}
	mux := http.NewServeMux()
	mux.Handle("/", page)
	mux.Handle("GET /metrics", s.Stats.Exposition())
	mux.HandleFunc("GET /livez", statusz.Livez)
	mux.Handle("GET /readyz", statusz.Readyz(s.Stats))
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = server.Serve(listener) }()
	s.tell(report{Kind: reportServes, Text: listener.Addr().String()})
}
