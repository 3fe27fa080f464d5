package docs

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/epochfence/epochfence/operate"
	"github.com/epochfence/epochfence/operate/stats"
	"github.com/epochfence/epochfence/operate/statusz"
	"github.com/epochfence/epochfence/sinks/memsink"
)

// serveStatus adds the status page, probes and metrics to what a program serves. s.Observe is in
// its consumer.Options, and op is what pgsink.OpenOperator or sqlsink.OpenOperator returned.
func serveStatus(mux *http.ServeMux, s *stats.Stats, op operate.Operator) error {
	page, err := statusz.New(statusz.Options{Title: "billing", Stats: s, Operator: op})
	if err != nil {
		return err
	}
	mux.Handle("/status/", http.StripPrefix("/status", page))
	mux.HandleFunc("GET /livez", statusz.Livez)
	mux.Handle("GET /readyz", statusz.Readyz(s))
	mux.Handle("GET /metrics", s.Exposition())
	return nil
}

func TestTheStatusPageIsServedAsShown(t *testing.T) {
	mux := http.NewServeMux()
	if err := serveStatus(mux, stats.New(), memsink.New().Operator()); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{"/status/": "<h1><bdi>billing</bdi></h1>", "/livez": "live", "/readyz": "not a member", "/metrics": "epochfence_member 0"} {
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
		if !strings.Contains(w.Body.String(), want) {
			t.Errorf("%s: %s", path, w.Body)
		}
	}
}
