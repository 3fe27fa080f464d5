// Package epochfence_test is about the repository. It comes first in go test ./... and needs next
// to nothing, so that a line is there within seconds, while the rest compiles.
package epochfence_test

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// The table in ARCHITECTURE.md bounds how much of everything there is. With -v, the test prints all of it.
func TestTheHouseIsWithinItsBudgets(t *testing.T) {
	var code []string
	top, inside, modules := map[string]bool{}, map[string]bool{}, 0
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() && path != "." && strings.HasPrefix(d.Name(), ".") {
			return fs.SkipDir
		}
		if d.Type().IsRegular() {
			dirs := strings.Split(filepath.ToSlash(path), "/")
			if len(dirs) > 1 && !strings.HasPrefix(dirs[0], ".") {
				top[dirs[0]] = true
			}
			if dirs[0] == "internal" && len(dirs) > 2 {
				inside[dirs[1]] = true
			}
			if d.Name() == "go.mod" {
				modules++
			}
			if strings.HasSuffix(path, ".go") && !strings.HasSuffix(path, "_test.go") && !strings.Contains(path, "testdata") {
				code = append(code, path)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	glob := func(pattern string) []string { found, _ := filepath.Glob(pattern); return found }
	count := func(pattern string, files ...string) (n int) {
		for _, file := range files {
			n += len(regexp.MustCompile(pattern).FindAllString(read(t, file), -1))
		}
		return n
	}
	pages := append(glob("docs/*.md"), "ARCHITECTURE.md")
	prose := 0
	for _, page := range pages {
		// What commands and tests write is no prose: tables between marks, and code of files.
		text := regexp.MustCompile("(?s)<!-- \\w+:begin -->.*?<!-- \\w+:end -->|<!-- the rest is written by.*|<!-- from [^>]*-->\n```.*?\n```").ReplaceAllString(read(t, page), "")
		prose += len(strings.Fields(text))
	}
	seconds := 0
	for _, budget := range strings.Fields(regexp.MustCompile(`[a-z]+ `).ReplaceAllString(read(t, ".ci/budget"), "")) {
		n, err := strconv.Atoi(budget)
		if err != nil {
			t.Error(err)
		}
		seconds += n
	}
	now := map[string]int{
		"files outside tests":    len(code),
		"lines outside tests":    count(`\n`, code...),
		"files of consumer":      len(slices.DeleteFunc(slices.Clone(code), func(f string) bool { ok, _ := filepath.Match("consumer/*.go", filepath.ToSlash(f)); return !ok })),
		"folders at the top":     len(top),
		"folders in internal":    len(inside),
		"modules":                modules,
		"mutation tests":         count(`(?m)^\t\{"[RL]\d+"`, glob("internal/mutation/guards*.go")...),
		"pages":                  len(pages),
		"words of pages":         prose,
		"words of README":        count(`\S+`, "README.md"),
		"make targets":           count(`(?m)^[a-z-]+:.*## `, "Makefile"),
		"seconds of all steps":   seconds,
		"steps of .ci/run":       count(`(?m)^step \S+ '`, ".ci/run"),
		"methods of a full sink": count(`(?m)^\t[A-Z]\w*\(`, "epoch/sink.go", "epoch/capabilities.go", "operate/ledger.go"),
	}
	said := 0
	for _, row := range regexp.MustCompile(`(?m)^\| ([\w /.]+) \| ([\d,]+) \| ([\d,]*) \|$`).FindAllStringSubmatch(read(t, "ARCHITECTURE.md"), -1) {
		n, is := now[row[1]]
		if !is {
			continue
		}
		said++
		bound, err := strconv.Atoi(strings.ReplaceAll(row[2], ",", ""))
		if line := fmt.Sprintf("%-24s %7d, at most %7d, goal %7s", row[1], n, bound, row[3]); err != nil || n > bound {
			t.Error(line)
		} else {
			t.Log(line)
		}
	}
	if said != len(now) {
		t.Errorf("ARCHITECTURE.md bounds %d of %d", said, len(now))
	}
}

func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
