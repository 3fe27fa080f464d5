package mutation

import (
	"go/scanner"
	"go/token"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"
)

// A guard stays where it is however the comments around it and in it are worded.
func TestEveryGuardIsFoundAfterAllCommentsWereReworded(t *testing.T) {
	reworded := map[string]string{}
	for _, g := range guards {
		for _, e := range g.edits {
			src, err := os.ReadFile(filepath.Join(module, filepath.FromSlash(e.file)))
			if err != nil {
				t.Fatal(err)
			}
			if reworded[e.file] == "" {
				reworded[e.file] = reword(e.file, string(src))
			}
			was, err := locate(e.file, string(src), e.old)
			if err != nil {
				t.Errorf("%s %s: %v", g.rule, g.taken, err)
				continue
			}
			is, err := locate(e.file, reworded[e.file], e.old)
			if err != nil {
				t.Fatalf("%s %s, reworded: %v", g.rule, g.taken, err)
			}
			before, after := tokens(e.file, string(src)[was.from:was.to]), tokens(e.file, reworded[e.file][is.from:is.to])
			if before != after {
				t.Errorf("%s %s is\n%s\nafter comments were reworded, and was\n%s", g.rule, g.taken, after, before)
			}
		}
	}
	for file, text := range reworded {
		if strings.Count(text, "reworded") < 5 {
			t.Errorf("%s has hardly a comment that was reworded", file)
		}
	}
}

// reword gives a file other comments, and a new one behind each line.
func reword(file, src string) string {
	if path.Ext(file) != ".go" {
		var b strings.Builder
		for line := range strings.Lines(src) {
			code, _, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "--")
			b.WriteString(code + " -- it's \"reworded\"\n\t/* and more */\n")
		}
		return b.String()
	}
	var (
		s scanner.Scanner
		b strings.Builder
	)
	set := token.NewFileSet()
	f := set.AddFile("", -1, len(src))
	s.Init(f, []byte(src), nil, scanner.ScanComments)
	at := 0
	for {
		pos, tok, literal := s.Scan()
		if tok == token.EOF {
			return b.String() + src[at:]
		}
		from := f.Offset(pos)
		b.WriteString(src[at:from])
		at = from
		switch {
		case tok == token.COMMENT && strings.HasPrefix(literal, "//"):
			b.WriteString("// `reworded")
			at += len(literal)
		case tok == token.SEMICOLON && literal == "\n":
			b.WriteString(" // \"reworded\n")
		}
	}
}

// tokens are those of a part of a file, or the part itself where it is in a literal.
func tokens(file, part string) string {
	tokenize := sqlTokens
	if path.Ext(file) == ".go" {
		tokenize = goTokens
	}
	all, ok := tokenize(part)
	if !ok {
		return part
	}
	var words []string
	for _, t := range all {
		words = append(words, t.text)
	}
	return strings.Join(words, " ")
}

func TestATextIsFoundOnceOrNotAtAll(t *testing.T) {
	const (
		code = "package p\n\nfunc f(a, b int) int {\n\tif a < b { // the smaller one\n\t\treturn a\n\t}\n\treturn b // `a < c`\n}\n\nconst q = `SELECT a\nFROM t WHERE a = ?`\n"
		sql  = "create function f() as $$\nbegin -- it's here: update t\n    update t set a = 'x -- y', b = b + 1;\n    update t set c = 1;\nend $$;\n"
	)
	for _, c := range []struct{ file, src, text, want string }{
		{"a.go", code, "if a < b {", "if a < b {"},
		{"a.go", code, "if a<b { return a }", "if a < b { // the smaller one\n\t\treturn a\n\t}"},
		{"a.go", code, "return a\n}\nreturn b\n", "return a\n\t}\n\treturn b"},
		{"a.go", code, "if a < b { /* any */\n\t\treturn a\n", "if a < b { // the smaller one\n\t\treturn a"},
		{"a.go", code, "WHERE a = ?", "WHERE a = ?"},
		{"a.go", code, "`SELECT a\nFROM t", "`SELECT a\nFROM t"},
		{"a.go", code, "a < c", ""},   // in a comment
		{"a.go", code, "return", ""},  // twice
		{"a.go", code, "retur", ""},   // half a word
		{"a.go", code, "// only", ""}, // nothing
		{"a.sql", sql, "update t  set\n a", "update t set a"},
		{"a.sql", sql, "a = 'x -- y',", "a = 'x -- y',"},
		{"a.sql", sql, "b=b+1", "b = b + 1"},
		{"a.sql", sql, "begin update", "begin -- it's here: update t\n    update"},
		{"a.sql", sql, "update t", ""}, // twice
		{"a.sql", sql, "here", ""},     // in a comment
		{"a.sql", sql, "updat", ""},    // half a word
	} {
		at, err := locate(c.file, c.src, c.text)
		if got := c.src[at.from:at.to]; got != c.want || (err == nil) != (c.want != "") {
			t.Errorf("%s, %q: got %q, %v, want %q", c.file, c.text, got, err, c.want)
		}
	}
}
