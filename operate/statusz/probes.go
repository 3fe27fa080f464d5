package statusz

import (
	"fmt"
	"net/http"

	"github.com/epochfence/epochfence/operate/stats"
)

// This file answers the probes. consumer.Status decides whether the process is ready.

// Livez answers 200 while this process serves requests. It checks nothing else; the package's
// documentation says why.
func Livez(w http.ResponseWriter, _ *http.Request) {
	plainText(w)
	fmt.Fprintln(w, "live: this process serves requests; no broker, database or partition was checked")
}

// Readyz answers 200 when this process is a member of its group, has claimed each partition that the
// source granted, none of them has halted, and no call hangs. Partitions that an operator paused do
// not count. Otherwise it answers 503 with a line for each reason. It reports
// [consumer.Status.Ready] of s.
func Readyz(s *stats.Stats) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		plainText(w)
		if err := s.Status().Ready(); err != nil {
			w.WriteHeader(http.StatusServiceUnavailable)
			fmt.Fprintln(w, "not ready:")
			fmt.Fprintln(w, err)
			return
		}
		fmt.Fprintln(w, "ready: a member of the group, each partition held is claimed; lag was not checked")
	})
}

func plainText(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("Cache-Control", "no-store")
}
