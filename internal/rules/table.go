package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// rules are those of the design, in short.
var rules = []struct{ name, text string }{
	{"R1", "A claim and a position, both compared, in one transaction"},
	{"R2", "No swap without a confirmation that came after the read"},
	{"R3", "A refusal raises: stale, moved and missing are different errors"},
	{"R4", "The check that enforces comes last, in key order"},
	{"R5", "In doubt, claim again and go on where that says"},
	{"R6", "Stale ends one partition's tenure; no claim without a confirmation"},
	{"R7", "The lease is the assignment's; what is retained keeps its claim"},
	{"R8", "The sink's position is the truth; the source has a mirror"},
	{"R9", "Known group, missing fence: the earliest message, or a halt"},
	{"R10", "Nothing is skipped or repeated in silence: halt with both numbers"},
	{"R11", "No comparison of wall clocks decides anything"},
	{"R12", "Every transaction and claim is bounded; the replaced one is evicted"},
	{"R13", "The lease outlives a batch, which is aborted before it ends"},
	{"blame", "Blame only the message at fault; hold up nobody else"},
}

// page is what docs/RULES.md says before the table.
const page = `# The rules, and the tests that fail without them

Each row is one guard. ` + "`make rules`" + ` takes them away, one at a time, and wants the test
named to fail. This page is what ` + "`go run ./internal/rules -table`" + ` prints.

`

// markdown is docs/RULES.md: a table with a row for each guard.
func markdown(module string) (string, error) {
	var b strings.Builder
	b.WriteString(page)
	b.WriteString("| rule | enforced in; without it | the test that fails |\n|---|---|---|\n")
	for _, r := range rules {
		name := fmt.Sprintf("**%s** %s", r.name, r.text)
		for _, g := range guards {
			if g.rule != r.name {
				continue
			}
			in, err := g.place(module)
			if err != nil {
				return b.String(), err
			}
			fmt.Fprintf(&b, "| %s | %s: %s | `%s` %s |\n", name, in, g.taken, g.pkg, g.test)
			name = ""
		}
	}
	return b.String(), nil
}

var definition = regexp.MustCompile(`(?m)^(?:func (?:\([^)]*\) )?|create function "epochfence"\.)(\w+)`)

// place names the file and function of a guard.
func (g guard) place(module string) (string, error) {
	var in []string
	for _, e := range g.edits {
		src, err := os.ReadFile(filepath.Join(module, filepath.FromSlash(e.file)))
		if err != nil {
			return "", err
		}
		before, _, ok := strings.Cut(string(src), e.old)
		if !ok || strings.Count(string(src), e.old) != 1 {
			return "", fmt.Errorf("%s does not have this exactly once; where is the guard now?\n%s", e.file, e.old)
		}
		place := "`" + e.file + "`"
		if all := definition.FindAllStringSubmatch(before, -1); len(all) > 0 {
			place += " " + all[len(all)-1][1]
		}
		in = append(in, place)
	}
	return strings.Join(in, " and "), nil
}
