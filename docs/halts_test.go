package docs

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/operate/remedies"
)

const (
	halts      = "docs/halts.md"
	haltsBegin = "<!-- the rest is written by: go test ./docs -update -->\n\n"
)

func TestTheHaltsInTheDocsAreWhatTheStatusPageSays(t *testing.T) {
	sections := make([]string, 0, len(remedies.All()))
	for _, r := range remedies.All() {
		sections = append(sections, r.Markdown())
	}
	want := strings.Join(sections, "\n")
	page := read(t, halts)
	before, has, begins := strings.Cut(page, haltsBegin)
	switch {
	case !begins:
		t.Fatalf("%s does not say where the texts begin", halts)
	case has == want:
	case !*update:
		t.Fatalf("%s has other texts: go test ./docs -update", halts)
	default:
		if err := os.WriteFile(filepath.Join("..", halts), []byte(before+haltsBegin+want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func TestTheTableOfReasonsHasEachReason(t *testing.T) {
	rows := tableRows(t, halts, "## All reasons")
	var has, want []string
	for _, row := range rows {
		has = append(has, row[0]+" "+row[2])
	}
	for _, r := range consumer.Reasons() {
		needs := "no"
		switch {
		case r == consumer.ReasonPaused:
			needs = "yes, to resume it"
		case r.NeedsOperator(), r == consumer.ReasonHung:
			needs = "yes"
		}
		want = append(want, "[`"+r.String()+"`](#"+r.String()+") "+needs)
	}
	if !slices.Equal(has, want) {
		t.Errorf("%s has the reasons\n%q; want\n%q", halts, has, want)
	}
}
