package main

import (
	"cmp"
	"fmt"
	"io/fs"
	"slices"
	"strings"
)

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

func whole(src string) span { return span{0, len(src)} }

func (s span) contains(t span) bool { return s.from <= t.from && t.to <= s.to }
