package docs

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/format"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const apiFile = "API.txt"

// What users can call is written down, so that a change of it is a decision: it
// shows in the diff of API.txt, and belongs into the changelog.
func TestWhatIsExportedIsWhatAPITxtSays(t *testing.T) {
	var all strings.Builder
	for _, dir := range userPackages(t) {
		fmt.Fprintf(&all, "package %s\n\n%s\n", filepath.ToSlash(dir), exported(t, filepath.Join("..", dir)))
	}
	have, err := os.ReadFile(apiFile)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	if all.String() == string(have) {
		return
	}
	if *update {
		if err := os.WriteFile(apiFile, []byte(all.String()), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	was, is := strings.Split(string(have), "\n"), strings.Split(all.String(), "\n")
	for _, line := range was {
		if !slices.Contains(is, line) {
			t.Errorf("gone: %s", line)
		}
	}
	for _, line := range is {
		if !slices.Contains(was, line) {
			t.Errorf("new: %s", line)
		}
	}
	t.Error("the exported API has changed; if it is meant to, run go test ./docs -update, and say so in CHANGELOG.md")
}

// userPackages are the directories of the packages that are neither internal nor
// programs.
func userPackages(t *testing.T) []string {
	t.Helper()
	var dirs []string
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return err
		}
		dir, err := filepath.Rel("..", path)
		switch {
		case err != nil:
			return err
		case strings.HasPrefix(dir, ".") && dir != ".",
			d.Name() == "internal",
			slices.Contains([]string{"compose", "docs", "examples"}, dir):
			return fs.SkipDir
		}
		files, _ := filepath.Glob(filepath.Join(path, "*.go"))
		if slices.ContainsFunc(files, func(name string) bool { return !strings.HasSuffix(name, "_test.go") }) {
			dirs = append(dirs, dir)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return dirs
}

// exported is what a package exports, without comments and bodies.
func exported(t *testing.T, dir string) string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	var decls []string
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		set := token.NewFileSet()
		file, err := parser.ParseFile(set, name, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		ast.FileExports(file)
		for _, d := range file.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				if d.Body = nil; !ast.IsExported(nameOf(d)) { // a method of what is not exported
					continue
				}
			case *ast.GenDecl:
				if d.Tok == token.IMPORT {
					continue
				}
			}
			var b bytes.Buffer
			if err := format.Node(&b, set, d); err != nil {
				t.Fatal(err)
			}
			decls = append(decls, b.String()+"\n")
		}
	}
	slices.Sort(decls)
	return strings.Join(slices.Compact(decls), "")
}
