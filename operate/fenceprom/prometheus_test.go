package fenceprom_test

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

// findPrometheus skips the test if there is none, and fails it where CI=true.
func findPrometheus(t testing.TB) string {
	t.Helper()
	return servertest.Find(t, "Debian package prometheus", "prometheus")
}

// prometheusServer is a real Prometheus. It ends with the test.
type prometheusServer struct{ url string }

// startPrometheus starts one that scrapes the targets, each "host:port", and evaluates the rules of
// the files once a second.
func startPrometheus(t testing.TB, targets, rules []string) *prometheusServer {
	t.Helper()
	bin := findPrometheus(t)
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
	s := &prometheusServer{"http://" + prom.Address}
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

// await polls until done, for a minute at most.
func (s *prometheusServer) await(t testing.TB, what string, done func() bool) {
	t.Helper()
	servertest.Await(t, what, done)
}

// query evaluates an expression, whose result must be an instant vector, now. It returns the labels of each sample.
func (s *prometheusServer) query(expression string) (labels []map[string]string, err error) {
	var answer struct {
		Status, Error string
		Data          struct {
			ResultType string
			Result     []struct {
				Metric map[string]string
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
		return nil, fmt.Errorf("%s: %s %s %s", expression, answer.Status, answer.Error, answer.Data.ResultType)
	}
	for _, r := range answer.Data.Result {
		labels = append(labels, r.Metric)
	}
	return labels, nil
}

// alerts returns the names of the alerts that fire now, each once, space-separated, in order.
func (s *prometheusServer) alerts(t testing.TB) string {
	t.Helper()
	firing, err := s.query(`sort(count by (alertname) (ALERTS{alertstate="firing"}))`)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, labels := range firing {
		names = append(names, labels["alertname"])
	}
	return strings.Join(names, " ")
}
