package alerts_test

import (
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/internal/servers/servertest"
	"github.com/epochfence/epochfence/operate/stats"
)

const file, tests = "epochfence.rules.yaml", "epochfence.test.yaml"

func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestPromtoolFindsNothingWrongWithTheRules(t *testing.T) {
	promtool := servertest.Find(t, "Debian package prometheus", "promtool")
	for _, args := range [][]string{{"check", "rules", file}, {"test", "rules", tests}} {
		if out, err := exec.Command(promtool, args...).CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
}

// A metric that does not exist raises no alert, and no error either.
func TestRulesUseMetricsAndLabelsThatThereAre(t *testing.T) {
	known := map[string]*stats.Metric{}
	for i, m := range stats.Metrics() {
		known[m.Name] = &stats.Metrics()[i]
	}
	selector := regexp.MustCompile(`(epochfence_[a-z_]+)(?:\{([^}]*)\})?`)
	matcher := regexp.MustCompile(`([a-z]+)(=~|!~|=|!=)"([^"]*)"`)
	for _, name := range []string{file, tests} {
		for line := range strings.Lines(read(t, name)) {
			if strings.HasPrefix(strings.TrimSpace(line), "#") {
				continue
			}
			for _, s := range selector.FindAllStringSubmatch(line, -1) {
				m := known[s[1]]
				for _, suffix := range []string{"_bucket", "_sum", "_count"} {
					if base := known[strings.TrimSuffix(s[1], suffix)]; m == nil && base != nil && base.Kind == stats.Histogram {
						m = base
					}
				}
				if m == nil {
					t.Errorf("%s: there is no metric %s", name, s[1])
					continue
				}
				for _, l := range matcher.FindAllStringSubmatch(s[2], -1) {
					if l[1] == "instance" || l[1] == "job" || l[1] == "le" {
						continue
					}
					i := slices.Index(m.Labels, l[1])
					if i < 0 {
						t.Errorf("%s: %s has no label %s", name, m.Name, l[1])
						continue
					}
					for value := range strings.SplitSeq(l[3], "|") {
						if !has(m, i, value) {
							t.Errorf("%s: %s has no %s %q", name, m.Name, l[1], value)
						}
					}
				}
			}
		}
	}
}

func has(m *stats.Metric, label int, value string) bool {
	if m.Series == nil { // of a partition
		return m.Labels[label] != "reason" || slices.ContainsFunc(consumer.Reasons(), func(r consumer.Reason) bool { return r.String() == value })
	}
	if m.PerResource() {
		label--
	}
	return label < 0 || slices.ContainsFunc(m.Series, func(s []string) bool { return s[label] == value })
}

func TestAHaltThatNeedsAPersonIsTheOneThatPages(t *testing.T) {
	var persons []string
	for _, r := range consumer.Reasons() {
		if r.NeedsOperator() {
			persons = append(persons, r.String())
		}
	}
	text := read(t, file)
	for _, which := range []string{`=~"` + strings.Join(persons, "|"), `!~"` + strings.Join(append(persons, "paused"), "|")} {
		if want := `epochfence_partition_halted{reason` + which + `"}`; !strings.Contains(text, want) {
			t.Errorf("%s does not have %s", file, want)
		}
	}
}

func TestEachNameOfTheFieldHasARecordingRule(t *testing.T) {
	text := read(t, file)
	for _, m := range stats.Metrics() {
		if m.KnownAs != "" && !strings.Contains(text, "- record: "+strings.Fields(m.KnownAs)[0]) {
			t.Errorf("no rule records %s for %s", m.KnownAs, m.Name)
		}
	}
}

// Whoever is woken reads what it means and what to do.
func TestEachAlertIsTestedAndHasAnEntryInTheRunbook(t *testing.T) {
	text, tested, runbook := read(t, file), read(t, tests), read(t, "../../docs/operating.md")
	alerts := regexp.MustCompile(`- alert: (\w+)`).FindAllStringSubmatch(text, -1)
	for _, a := range alerts {
		if !strings.Contains(tested, `alertname="`+a[1]+`"`) {
			t.Errorf("%s does not raise %s", tests, a[1])
		}
		if !strings.Contains(runbook, "\n### "+a[1]+"\n") {
			t.Errorf("docs/operating.md has no heading %s", a[1])
		}
		if !strings.Contains(text, "docs/operating.md#"+strings.ToLower(a[1])+"\n") {
			t.Errorf("%s does not lead to its entry", a[1])
		}
	}
	alerts = slices.CompactFunc(alerts, slices.Equal) // rules of two severities stand together
	headings := regexp.MustCompile(`(?m)^### (Epochfence\w+)$`).FindAllString(runbook, -1)
	if len(headings) != len(alerts) || len(alerts) == 0 {
		t.Errorf("%d alerts, and %d entries in the runbook", len(alerts), len(headings))
	}
}
