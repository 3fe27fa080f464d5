package sinktest

import (
	"bytes"
	"cmp"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

var (
	allIdioms    = flag.Bool("idioms.all", false, "play all idioms in all modes, whatever Idiomatic.Plays says")
	updateIdioms = flag.Bool("idioms.update", false, "write the table of the idioms' outcomes into testdata")
)

// compareTable compares the table of outcomes with the file of t, or writes it. The outcomes are the
// wanted ones: a play with another one fails by itself.
func compareTable(t *testing.T, modes []mode) {
	file, table := filepath.Join("testdata", t.Name()+".md"), markdown(modes)
	if *updateIdioms {
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Error(err)
		}
		if err := os.WriteFile(file, table, 0o644); err != nil {
			t.Error(err)
		}
		return
	}
	kept, err := os.ReadFile(file)
	if err != nil {
		t.Errorf("%v: -idioms.update writes it", err)
	} else if !bytes.Equal(kept, table) {
		t.Errorf("%s differs; -idioms.update writes it. It should be\n%s", file, table)
	}
}

func markdown(modes []mode) []byte {
	var columns []string
	for _, m := range modes {
		if !slices.Contains(columns, m.column()) {
			columns = append(columns, m.column())
		}
	}
	var w bytes.Buffer
	fmt.Fprintf(&w, "| a handler that … | in | %s |\n", strings.Join(columns, " | "))
	fmt.Fprintf(&w, "|---|---|%s\n", strings.Repeat("---|", len(columns)))
	for _, place := range []string{inEach, inBatches, inOnFailure, inReplay, inBackground} {
		written := map[string]bool{}
		for _, m := range modes {
			for _, i := range m.idiomsIn(place) {
				if written[i.Name] {
					continue
				}
				written[i.Name] = true
				fmt.Fprintf(&w, "| %s | %s |", strings.ReplaceAll(i.Name, "|", `\|`), place)
				for _, c := range columns {
					fmt.Fprintf(&w, " %s |", cell(modes, c, place, i.Name))
				}
				fmt.Fprintln(&w)
			}
		}
	}
	return w.Bytes()
}

func (m *mode) column() string { return cmp.Or(m.Column, m.Mode) }

// cell has the outcome in most modes of a column, and the modes that differ by name.
func cell(modes []mode, column, place, idiom string) string {
	wants, count := map[string]Outcome{}, map[Outcome]int{}
	for _, m := range modes {
		for _, i := range m.idiomsIn(place) {
			if m.column() == column && i.Name == idiom {
				wants[m.Mode] = i.wantIn(place, m.Mode)
				count[wants[m.Mode]]++
			}
		}
	}
	var most Outcome
	for o, n := range count {
		if n > count[most] || n == count[most] && o < most {
			most = o
		}
	}
	said := string(most)
	for _, mode := range slices.Sorted(maps.Keys(wants)) {
		if o := wants[mode]; o != most {
			said += fmt.Sprintf("; %s: %s", mode, o)
		}
	}
	return said
}
