package docs_test

import (
	"bytes"
	"os"
	"regexp"
	"strconv"
	"testing"
)

// At fifty lines a minute.
func TestTheCoreIsReadInHalfAnHour(t *testing.T) {
	page, err := os.ReadFile("../ARCHITECTURE.md")
	if err != nil {
		t.Fatal(err)
	}
	lines, minutes := 0, 0
	for _, row := range regexp.MustCompile(`(?m)^\| (\d+) \| \[[^]]+\]\(([^)]+\.go)\) \|`).FindAllSubmatch(page, -1) {
		code, err := os.ReadFile("../" + string(row[2]))
		if err != nil {
			t.Fatal(err)
		}
		said, _ := strconv.Atoi(string(row[1]))
		n := bytes.Count(code, []byte("\n"))
		if want := n / 50; said != want && said != want+1 {
			t.Errorf("%s: %d minutes for %d lines", row[2], said, n)
		}
		lines, minutes = lines+n, minutes+said
	}
	if lines == 0 || lines > 1500 || minutes > 30 {
		t.Errorf("%d lines in %d minutes; want 1,500 in 30 at most", lines, minutes)
	}
}
