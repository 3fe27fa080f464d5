package docs

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/epochfence/epochfence/ops/remedies"
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
