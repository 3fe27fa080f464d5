package docs

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/epochfence/epochfence/operate/stats"
)

const (
	operating    = "docs/operating.md"
	metricsBegin = "| metric | labels | what it is |\n|---|---|---|\n"
)

func TestTheMetricsInTheRunbookAreThoseOfTheTable(t *testing.T) {
	var rows strings.Builder
	for _, m := range stats.Metrics() {
		labels := "–"
		if len(m.Labels) > 0 {
			labels = "`" + strings.Join(m.Labels, "`, `") + "`"
		}
		fmt.Fprintf(&rows, "| `%s` | %s | %s |\n", m.Name, labels, m.Text())
	}
	page := read(t, operating)
	before, rest, begins := strings.Cut(page, metricsBegin)
	has, after, ends := strings.Cut(rest, "|\n\n")
	has += "|\n"
	if !begins || !ends {
		t.Fatalf("%s has no table of metrics", operating)
	}
	if has == rows.String() {
		return
	}
	if !*update {
		t.Fatalf("%s has another table of metrics: go test ./docs -update", operating)
	}
	if err := os.WriteFile(filepath.Join("..", operating), []byte(before+metricsBegin+rows.String()+"\n"+after), 0o644); err != nil {
		t.Fatal(err)
	}
}
