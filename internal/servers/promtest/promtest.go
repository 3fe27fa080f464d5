// Package promtest runs a real Prometheus for a test. A test whose Prometheus is not
// installed skips, and fails where CI=true.
package promtest

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/epochfence/epochfence/internal/servers/servertest"
)

// Tool returns the path of "prometheus" or "promtool".
func Tool(t testing.TB, name string) string {
	t.Helper()
	return servertest.Find(t, "Debian package prometheus", name)
}

// Server is a Prometheus. It ends with the test.
type Server struct{ url string }

// Start starts one that scrapes the targets, each "host:port", and evaluates the rules of
// the files once a second.
func Start(t testing.TB, targets, rules []string) *Server {
	t.Helper()
	bin := Tool(t, "prometheus")
	quoted := func(ss []string) string { // a list in YAML
		b, err := json.Marshal(ss)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	config := fmt.Sprintf("global: {scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s}\nrule_files: %s\n"+
		"scrape_configs: [{job_name: epochfence, static_configs: [{targets: %s}]}]\n", quoted(rules), quoted(targets))
	file := filepath.Join(t.TempDir(), "prometheus.yaml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	prom := servertest.Start(t, func(s *servertest.Server) *exec.Cmd {
		return exec.Command(bin, "--config.file="+file, "--storage.tsdb.path="+filepath.Join(s.Dir, "data"), "--web.listen-address="+s.Address, "--log.level=warn")
	})
	s := &Server{"http://" + prom.Address}
	servertest.Await(t, "Prometheus is ready", func() bool {
		res, err := http.Get(s.url + "/-/ready")
		if err != nil {
			return false
		}
		_ = res.Body.Close()
		return res.StatusCode == http.StatusOK
	})
	return s
}

// Await polls until done, for a minute at most.
func (s *Server) Await(t testing.TB, what string, done func() bool) {
	t.Helper()
	servertest.Await(t, what, done)
}

// Sample is one of an instant vector.
type Sample struct {
	Labels map[string]string
	Value  string
}

// Query evaluates an expression, whose result must be an instant vector, now.
func (s *Server) Query(expression string) ([]Sample, error) {
	var answer struct {
		Status, Error string
		Data          struct {
			ResultType string
			Result     []struct {
				Metric map[string]string
				Value  [2]any
			}
		}
	}
	res, err := http.PostForm(s.url+"/api/v1/query", url.Values{"query": {expression}})
	if err != nil {
		return nil, err
	}
	defer func() { _ = res.Body.Close() }()
	if err := json.NewDecoder(res.Body).Decode(&answer); err != nil {
		return nil, err
	}
	if answer.Status != "success" || answer.Data.ResultType != "vector" {
		return nil, fmt.Errorf("promtest: %s: %s %s %s", expression, answer.Status, answer.Error, answer.Data.ResultType)
	}
	var all []Sample
	for _, r := range answer.Data.Result {
		all = append(all, Sample{r.Metric, fmt.Sprint(r.Value[1])})
	}
	return all, nil
}

// Alerts returns the names of the alerts that fire now, each once, space-separated, in order.
func (s *Server) Alerts(t testing.TB) string {
	t.Helper()
	firing, err := s.Query(`sort(count by (alertname) (ALERTS{alertstate="firing"}))`)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, a := range firing {
		names = append(names, a.Labels["alertname"])
	}
	return strings.Join(names, " ")
}
