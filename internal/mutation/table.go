package main

import (
	"fmt"
	"go/ast"
	"io/fs"
	"path"
	"regexp"
	"strings"
)

// rulesPage defines the rules of the protocol, each in a row of a table.
const rulesPage = "docs/guarantees.md"

var ruleRow = regexp.MustCompile(`(?m)^\| ([RL]\d+)\. (.+?) \| .+ \|$`)

type rule struct{ name, text string }

func rulesOf(module fs.FS) (rules []rule, err error) {
	text, err := fs.ReadFile(module, rulesPage)
	for _, m := range ruleRow.FindAllSubmatch(text, -1) {
		rules = append(rules, rule{string(m[1]), string(m[2])})
	}
	return rules, err
}

// markdown returns a table of all guards, by rule.
func markdown(module fs.FS) (string, error) {
	rules, err := rulesOf(module)
	if err != nil {
		return "", err
	}
	var b strings.Builder
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
