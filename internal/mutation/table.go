package main

import (
	"fmt"
	"go/ast"
	"io/fs"
	"path"
	"regexp"
	"strings"
)

var rules = []struct{ name, text string }{
	{"R1", "A claim and a position, both compared, in one transaction"},
	{"R2", "No swap without a confirmation that came after the read"},
	{"R3", "A refusal raises: stale, moved and missing are different errors"},
	{"R4", "The check that enforces comes last, in key order"},
	{"R5", "In doubt, claim again and continue where that says"},
	{"R6", "Stale ends one partition's tenure; no claim without a confirmation"},
	{"R7", "The lease is the assignment's; what is retained keeps its claim"},
	{"R8", "The sink's position is the truth; the source has a mirror"},
	{"R9", "Known group, missing fence: the earliest message, or a halt"},
	{"R10", "Nothing is skipped or repeated silently: halt with both numbers"},
	{"R11", "No comparison of wall clocks decides anything"},
	{"R12", "Every transaction and claim is bounded; the replaced one is evicted"},
	{"R13", "The lease outlives a batch, which is aborted before it ends"},
	{"blame", "Blame only the message at fault; hold up nobody else"},
	{"protect", "A protected table counts or refuses each transaction that is not fenced, and no other"},
}

const page = `# The guards, and the tests that fail without them

` + "`make mutation`" + ` takes these guards away, one at a time, and runs the test named for each, which must
fail. [The rules](docs/guarantees.md#the-rules) are those of the protocol.

`

func markdown(module fs.FS) (string, error) {
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

// place names the files of a guard, and the definitions that contain it.
func (g guard) place(module fs.FS) (string, error) {
	var in []string
	for _, e := range g.edits {
		src, err := fs.ReadFile(module, e.file)
		if err != nil {
			return "", err
		}
		at, err := locate(e.file, string(src), e.old)
		if err != nil {
			return "", fmt.Errorf("%s %s: %w", g.rule, g.taken, err)
		}
		name, err := definition(e.file, string(src), at)
		if err != nil {
			return "", err
		}
		in = append(in, strings.TrimSpace("`"+e.file+"` "+name))
	}
	return strings.Join(in, " and "), nil
}

var created = regexp.MustCompile(`(?m)^create function "epochfence"\.(\w+)`)

// definition names the function, or else the constant or variable, that contains a part of a file.
func definition(file, src string, part span) (name string, err error) {
	if path.Ext(file) != ".go" {
		for _, m := range created.FindAllStringSubmatch(src[:part.from], -1) {
			name = m[1]
		}
		return name, nil
	}
	f, err := parse(file, src)
	if err != nil {
		return "", err
	}
	ast.Inspect(f.tree, func(n ast.Node) bool {
		if n == nil || !f.span(n).contains(part) {
			return false
		}
		switch n := n.(type) {
		case *ast.FuncDecl:
			name = n.Name.Name
			return false
		case *ast.ValueSpec:
			name = n.Names[0].Name
		}
		return true
	})
	return name, nil
}
