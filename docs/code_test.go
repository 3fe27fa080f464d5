// Package docs holds the programs and functions that the guides beside it show,
// and the tests that keep the two the same.
package docs

import (
	"bytes"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the code that the pages name into them")

// pages are the Markdown files of the module, by their paths in it.
func pages(t *testing.T) []string {
	t.Helper()
	var all []string
	for _, pattern := range []string{"*.md", "docs/*.md", "compose/*.md"} {
		found, err := filepath.Glob(filepath.Join("..", pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range found {
			all = append(all, filepath.ToSlash(strings.TrimPrefix(path, ".."+string(filepath.Separator))))
		}
	}
	if len(all) < 10 {
		t.Fatalf("found only %d pages: %q", len(all), all)
	}
	return all
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", path))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// fenced is a block of code in a page, with the line above it.
var fenced = regexp.MustCompile("(?ms)^(<!-- ([^\n]*?) -->\n)?```(\\w*)\n(.*?)^```$")

// A block of Go or SQL shows code that is compiled and tested, and says which:
//
//	<!-- from examples/quickstart/kafka/main.go -->      the whole file
//	<!-- from docs/dedupe_test.go: shipOnce, Box.Add --> these declarations of it
//	<!-- from docs/dedupe_test.go: body of Example -->   what is between the braces
//	<!-- from sinks/pgsink/fence.sql: some words -->     the lines from one that has these words to an empty one
func TestTheCodeInTheDocsIsCodeThatIsTested(t *testing.T) {
	for _, page := range pages(t) {
		text := read(t, page)
		now := fenced.ReplaceAllStringFunc(text, func(block string) string {
			part := fenced.FindStringSubmatch(block)
			from, isCode := strings.CutPrefix(part[2], "from ")
			if !isCode {
				if part[3] == "go" || part[3] == "sql" {
					t.Errorf("%s: nothing checks this block; name its source in the line above:\n%s", page, block)
				}
				return block
			}
			code, err := excerpt(from)
			if err != nil {
				t.Errorf("%s: %s: %v", page, from, err)
				return block
			}
			return part[1] + "```" + part[3] + "\n" + code + "```"
		})
		switch {
		case now == text:
		case *update:
			if err := os.WriteFile(filepath.Join("..", page), []byte(now), 0o644); err != nil {
				t.Error(err)
			}
		default:
			t.Errorf("%s shows code that is not like that any more: go test ./docs -update", page)
		}
	}
}

// excerpt is the code that a comment names.
func excerpt(from string) (string, error) {
	path, what, part := strings.Cut(from, ": ")
	text, err := os.ReadFile(filepath.Join("..", path))
	if err != nil {
		return "", err
	}
	switch {
	case !part:
		return string(text), nil
	case filepath.Ext(path) == ".go":
		return declarations(text, what)
	}
	lines := strings.SplitAfter(string(text), "\n")
	first := slices.IndexFunc(lines, func(line string) bool { return strings.Contains(line, what) })
	if first < 0 {
		return "", fmt.Errorf("no line has %q", what)
	}
	lines = lines[first:]
	if end := slices.Index(lines, "\n"); end >= 0 {
		lines = lines[:end]
	}
	return strings.Join(lines, ""), nil
}

// declarations are those with the names, or the body of one function.
func declarations(text []byte, names string) (string, error) {
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, "", text, parser.ParseComments)
	if err != nil {
		return "", err
	}
	at := func(from, to token.Pos) string {
		return string(text[files.Position(from).Offset:files.Position(to).Offset]) + "\n"
	}
	names, body := strings.CutPrefix(names, "body of ")
	var found []string
	for name := range strings.SplitSeq(names, ", ") {
		i := slices.IndexFunc(file.Decls, func(d ast.Decl) bool { return nameOf(d) == name })
		if i < 0 {
			return "", fmt.Errorf("it declares no %s", name)
		}
		d := file.Decls[i]
		if body {
			b := d.(*ast.FuncDecl).Body
			return dedent(strings.Trim(at(b.Lbrace+1, b.Rbrace), "\n")), nil
		}
		begin := d.Pos()
		if doc := docOf(d); doc != nil {
			begin = doc.Pos()
		}
		found = append(found, at(begin, d.End()))
	}
	return strings.Join(found, "\n"), nil
}

func nameOf(d ast.Decl) string {
	switch d := d.(type) {
	case *ast.GenDecl:
		if s, ok := d.Specs[0].(*ast.TypeSpec); ok {
			return s.Name.Name
		}
		if s, ok := d.Specs[0].(*ast.ValueSpec); ok {
			return s.Names[0].Name
		}
	case *ast.FuncDecl:
		if d.Recv == nil {
			return d.Name.Name
		}
		of := d.Recv.List[0].Type
		if star, ok := of.(*ast.StarExpr); ok {
			of = star.X
		}
		if generic, ok := of.(*ast.IndexExpr); ok {
			of = generic.X
		}
		if typ, ok := of.(*ast.Ident); ok {
			return typ.Name + "." + d.Name.Name
		}
	}
	return ""
}

func docOf(d ast.Decl) *ast.CommentGroup {
	switch d := d.(type) {
	case *ast.GenDecl:
		return d.Doc
	case *ast.FuncDecl:
		return d.Doc
	}
	return nil
}

// dedent takes one tab off each line.
func dedent(body string) string {
	var b bytes.Buffer
	for line := range strings.Lines(body + "\n") {
		b.WriteString(strings.TrimPrefix(line, "\t"))
	}
	return b.String()
}

var (
	link    = regexp.MustCompile(`\]\(([^()\s]+)\)`)
	heading = regexp.MustCompile(`(?m)^#+ (.*)$`)
	target  = regexp.MustCompile("(?m)^(?: *|`)make ([a-z][a-z-]+)")
	folder  = regexp.MustCompile(`\bgo (?:run|test|build|vet)\b[^\n]*? (\./[\w./-]*)`)
	codes   = regexp.MustCompile("(?m)^    .*$|`[^`\n]+`|(?s)^```.*?^```$")
)

// What a page points at is there: other pages and their headings, files, the
// targets of the Makefile, and the packages of commands.
func TestWhatTheDocsPointAtIsThere(t *testing.T) {
	makefile := read(t, "Makefile")
	for _, page := range pages(t) {
		text := read(t, page)
		for _, m := range link.FindAllStringSubmatch(text, -1) {
			path, anchor, _ := strings.Cut(m[1], "#")
			if strings.Contains(path, "://") {
				continue
			}
			whole := filepath.Join("..", filepath.Dir(page), path)
			if path == "" {
				whole = filepath.Join("..", page)
			}
			if _, err := os.Stat(whole); err != nil {
				t.Errorf("%s points at %s: %v", page, m[1], err)
			} else if anchor != "" && !slices.Contains(anchors(t, whole), anchor) {
				t.Errorf("%s points at %s: there is no such heading", page, m[1])
			}
		}
		for _, code := range codes.FindAllString(text, -1) {
			for _, m := range target.FindAllStringSubmatch(code, -1) {
				if !strings.Contains(makefile, "\n"+m[1]+":") {
					t.Errorf("%s: the Makefile has no target %s", page, m[1])
				}
			}
			for _, m := range folder.FindAllStringSubmatch(code, -1) {
				path := strings.TrimSuffix(m[1], "...")
				if _, err := os.Stat(filepath.Join("..", path)); err != nil {
					t.Errorf("%s: %s: %v", page, strings.TrimSpace(code), err)
				}
			}
		}
	}
}

// anchors are the headings of a page, as GitHub names them in links.
func anchors(t *testing.T, path string) []string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, m := range heading.FindAllStringSubmatch(string(text), -1) {
		anchor := strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case r == '-' || r == '_' || r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r > 127:
				return r
			case r >= 'A' && r <= 'Z':
				return r - 'A' + 'a'
			}
			return -1
		}, m[1])
		all = append(all, anchor)
	}
	return all
}

// folders are where the packages are that pages name things of.
var folders = map[string]string{
	"epoch": "epoch", "consumer": "consumer", "kafkasource": "consumer/kafkasource", "natssource": "consumer/natssource",
	"memsource": "consumer/memsource", "sourcetest": "consumer/sourcetest", "pgsink": "sinks/pgsink", "sqlsink": "sinks/sqlsink", "shardsink": "sinks/shardsink",
	"memsink": "sinks/memsink", "sinktest": "sinks/sinktest", "outbox": "outbox", "pgoutbox": "outbox/pgoutbox",
	"sqloutbox": "outbox/sqloutbox", "httpfence": "outbox/httpfence",
	"sqlfence": "lease/sqlfence",
}

var name = regexp.MustCompile(`\b([a-z]+)((?:\.[A-Z]\w*)+)`)

// What a page calls by its name in Go, such as consumer.Options.Observe, is called
// so in the package.
func TestWhatTheDocsNameIsCalledSo(t *testing.T) {
	words := map[string]map[string]bool{}
	for pkg, folder := range folders {
		files, err := filepath.Glob(filepath.Join("..", folder, "*.go"))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %d files, %v", folder, len(files), err)
		}
		words[pkg] = map[string]bool{}
		for _, path := range files {
			if strings.HasSuffix(path, "_test.go") {
				continue
			}
			file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			ast.Inspect(file, func(n ast.Node) bool {
				if id, ok := n.(*ast.Ident); ok {
					words[pkg][id.Name] = true
				}
				return true
			})
		}
	}
	for _, page := range pages(t) {
		for _, code := range codes.FindAllString(read(t, page), -1) {
			for _, m := range name.FindAllStringSubmatch(code, -1) {
				for part := range strings.SplitSeq(m[2][1:], ".") {
					if known := words[m[1]]; known != nil && !known[part] {
						t.Errorf("%s: %s: package %s has no %s", page, m[0], m[1], part)
					}
				}
			}
		}
	}
}
