package alerts_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/epochfence/epochfence/internal/servers/servertest"
)

const compose = "../../compose/"

// There is no Docker where the tests run; what can be checked without is.
func TestThePrometheusOfComposeHasTheRulesAndScrapesTheExamples(t *testing.T) {
	page := read(t, compose+"compose.yaml")
	_, content, ok := strings.Cut(page, "\n  prometheus:\n    content: |\n")
	if !ok {
		t.Fatal("there is no configuration")
	}
	content, _, _ = strings.Cut(content, "\n  rules:\n    file: ../operate/alerts/"+file+"\n")
	if strings.Contains(content, "\nvolumes:") {
		t.Fatal("the rules are not those of this directory")
	}
	const rules = "/etc/prometheus/" + file
	if !strings.Contains(page, "{source: rules, target: "+rules+"}") || !strings.Contains(content, rules) {
		t.Errorf("the rules are not at %s", rules)
	}
	for name, text := range map[string]string{"inventory": page, "payments": read(t, compose+"nats.yaml")} {
		_, service, _ := strings.Cut(text, "\n  "+name+":\n")
		port := regexp.MustCompile(`- -http=:(\d+)\n`).FindStringSubmatch(service)
		if port == nil || port[1] != "8080" || !strings.Contains(content, `"`+name+`:8081"`) {
			t.Errorf("%s serves the metrics of its workers above %v, and is scraped as\n%s", name, port, content)
		}
	}

	promtool := servertest.Find(t, "Debian package prometheus", "promtool")
	here, err := filepath.Abs(file)
	if err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(t.TempDir(), "prometheus.yml")
	if err := os.WriteFile(config, []byte(strings.ReplaceAll(content, rules, here)), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(promtool, "check", "config", config).CombinedOutput(); err != nil || !strings.Contains(string(out), "1 rule files") {
		t.Errorf("promtool: %v\n%s", err, out)
	}
}

func TestNothingOfComposeIsReachedFromElsewhereAndEachImageHasAVersion(t *testing.T) {
	for _, name := range []string{"compose.yaml", "nats.yaml", "Dockerfile"} {
		for line := range strings.Lines(read(t, compose+name)) {
			if _, ports, ok := strings.Cut(line, " ports: ["); ok && strings.Count(ports, `"`) != 2*strings.Count(ports, `"127.0.0.1:`) {
				t.Errorf("%s: %s", name, line)
			}
			image := regexp.MustCompile(`(?:\simage: |^FROM )(\S+)`).FindStringSubmatch(line)
			if image == nil || image[1] == "source" { // a stage
				continue
			}
			if !regexp.MustCompile(`:v?\d+\.\d+`).MatchString(image[1]) {
				t.Errorf("%s: %s has no version", name, image[1])
			}
		}
	}
}
