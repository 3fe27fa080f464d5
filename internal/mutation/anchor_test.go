package mutation

import (
	"cmp"
	"fmt"
	"go/scanner"
	"go/token"
	"io/fs"
	"path"
	"slices"
	"strings"
)

type span struct{ from, to int }

func whole(src string) span { return span{0, len(src)} }

func (s span) contains(t span) bool { return s.from <= t.from && t.to <= s.to }

// locate returns the one place in a file that has the tokens of text. It ignores comments and white
// space in both. It finds a text that is part of a Go string literal in that literal, byte by byte.
func locate(file, src, text string) (span, error) {
	found := inTokens(file, src, text)
	if len(found) == 0 && path.Ext(file) == ".go" {
		found = inLiterals(src, text)
	}
	if len(found) != 1 {
		return span{}, fmt.Errorf("%s has this %d times, want it once; where is the guard now?\n%s", file, len(found), text)
	}
	return found[0], nil
}

type lexeme struct {
	span
	text string
}

func inTokens(file, src, text string) (found []span) {
	tokenize := sqlTokens
	if path.Ext(file) == ".go" {
		tokenize = goTokens
	}
	want, ok := tokenize(text)
	if !ok || len(want) == 0 {
		return nil
	}
	have, _ := tokenize(src)
	for i := range have {
		if begins(have[i:], want) {
			found = append(found, span{have[i].from, have[i+len(want)-1].to})
		}
	}
	return found
}

func begins(have, want []lexeme) bool {
	if len(have) < len(want) {
		return false
	}
	for i, w := range want {
		if have[i].text != w.text {
			return false
		}
	}
	return true
}

func inLiterals(src, text string) (found []span) {
	all, _ := goTokens(src)
	for _, t := range all {
		if !strings.HasPrefix(t.text, "`") && !strings.HasPrefix(t.text, `"`) {
			continue
		}
		for at := 0; ; at++ {
			next := strings.Index(src[t.from+at:t.to], text)
			if next < 0 {
				break
			}
			at += next
			found = append(found, span{t.from + at, t.from + at + len(text)})
		}
	}
	return found
}

// goTokens are the tokens of Go, without the semicolons that only a line's end makes.
// They are not ok if the text begins or ends within a literal.
func goTokens(src string) (all []lexeme, ok bool) {
	var (
		s      scanner.Scanner
		files  = token.NewFileSet()
		file   = files.AddFile("", -1, len(src))
		broken = 0
	)
	s.Init(file, []byte(src), func(token.Position, string) { broken++ }, 0)
	for {
		pos, tok, literal := s.Scan()
		switch {
		case tok == token.EOF:
			return all, broken == 0
		case tok == token.SEMICOLON && literal != ";":
			continue
		case literal == "":
			literal = tok.String()
		}
		from := file.Offset(pos)
		all = append(all, lexeme{span{from, from + len(literal)}, literal})
	}
}

// sqlTokens are words, texts in single or double quotes, and other characters one by one. What is
// between dollar quotes is code like the rest.
func sqlTokens(src string) (all []lexeme, ok bool) {
	for at := 0; at < len(src); {
		rest := src[at:]
		n := 1
		switch c := src[at]; {
		case strings.ContainsRune(" \t\r\n", rune(c)):
			at++
			continue
		case strings.HasPrefix(rest, "--"):
			at += through(rest, "\n")
			continue
		case strings.HasPrefix(rest, "/*"):
			at += through(rest, "*/")
			continue
		case c == '\'' || c == '"':
			n = 1 + through(rest[1:], string(c))
		case isWord(c):
			for n < len(rest) && isWord(rest[n]) {
				n++
			}
		}
		all = append(all, lexeme{span{at, at + n}, rest[:n]})
		at += n
	}
	return all, true
}

// through returns how long a text is up to the end of what it contains.
func through(text, end string) int {
	if i := strings.Index(text, end); i >= 0 {
		return i + len(end)
	}
	return len(text)
}

func isWord(c byte) bool {
	return c == '_' || c >= 0x80 || c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
}

type change struct {
	span
	text string
}

func (g guard) changes(module fs.FS) (map[string][]change, error) {
	all := map[string][]change{}
	for _, e := range g.edits {
		src, err := fs.ReadFile(module, e.file)
		if err != nil {
			return nil, err
		}
		at, err := locate(e.file, string(src), e.old)
		if err != nil {
			return nil, err
		}
		all[e.file] = append(all[e.file], change{at, e.new})
	}
	for file, cs := range all {
		slices.SortFunc(cs, func(a, b change) int { return cmp.Compare(a.from, b.from) })
		for i := range cs[1:] {
			if cs[i].to > cs[i+1].from {
				return nil, fmt.Errorf("%s: two edits of one guard overlap: %q and %q", file, cs[i].text, cs[i+1].text)
			}
		}
	}
	return all, nil
}

// changed returns a part of a text with the changes made. All changes must be in that part.
func changed(src string, part span, cs []change) string {
	var b strings.Builder
	at := part.from
	for _, c := range cs {
		b.WriteString(src[at:c.from])
		b.WriteString(c.text)
		at = c.to
	}
	b.WriteString(src[at:part.to])
	return b.String()
}
