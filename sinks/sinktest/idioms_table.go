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
	"sync"
	"testing"
)

var (
	allIdioms    = flag.Bool("idioms.all", false, "play all idioms in all modes, whatever Idiomatic.Plays says")
	updateIdioms = flag.Bool("idioms.update", false, "write the table of the idioms' outcomes into testdata")
)

// table collects the outcomes by row, column and mode.
type table struct {
	mu      sync.Mutex
	columns []string
	rows    []row
	cells   map[row]map[string]map[string]string // outcomes; empty until played
}

type row struct{ place, idiom string }

// newTable returns a table that is compared or written after all of t has run.
func newTable(t *testing.T) *table {
	b := &table{cells: map[row]map[string]map[string]string{}}
	t.Cleanup(func() { b.compare(t, filepath.Join("testdata", t.Name()+".md")) })
	return b
}

func (b *table) expect(m *mode) {
	if !slices.Contains(b.columns, m.column()) {
		b.columns = append(b.columns, m.column())
	}
	for _, place := range []string{inEach, inBatches, inOnFailure, inReplay, inBackground} {
		for _, i := range m.idiomsIn(place) {
			b.note(m, place, i.Name, "")
		}
	}
}

func (m *mode) column() string { return cmp.Or(m.Column, m.Mode) }

func (b *table) note(m *mode, place, idiom, outcome string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	r, c := row{place, idiom}, m.column()
	if b.cells[r] == nil {
		b.rows = append(b.rows, r)
		b.cells[r] = map[string]map[string]string{}
	}
	if b.cells[r][c] == nil {
		b.cells[r][c] = map[string]string{}
	}
	b.cells[r][c][m.Mode] = outcome
}

// compare compares the table with a file. If only some idioms ran, it compares only those. It runs
// as a cleanup, where FailNow would hide the subtests' output: a T with parallel subtests is
// reported after its cleanups, in the same deferred function.
func (b *table) compare(t *testing.T, file string) {
	if *updateIdioms {
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Error(err)
		}
		if err := os.WriteFile(file, b.markdown(b.complete), 0o644); err != nil {
			t.Error(err)
		}
		return
	}
	kept, err := os.ReadFile(file)
	if err != nil {
		t.Errorf("%v: -idioms.update writes it", err)
		return
	}
	lines := strings.Split(string(kept), "\n")
	want := strings.Split(string(b.markdown(b.missing(lines))), "\n")
	for n, line := range want {
		if n >= len(lines) || lines[n] != line {
			t.Errorf("%s differs; -idioms.update writes it. It should have\n%s", file, line)
			return
		}
	}
	if len(lines) != len(want) {
		t.Errorf("%s has %d lines, and should have %d; -idioms.update writes it", file, len(lines), len(want))
	}
}

func (b *table) markdown(cell func(r row, n int, column string) string) []byte {
	var w bytes.Buffer
	fmt.Fprintf(&w, "| a handler that … | in | %s |\n", strings.Join(b.columns, " | "))
	fmt.Fprintf(&w, "|---|---|%s\n", strings.Repeat("---|", len(b.columns)))
	slices.SortStableFunc(b.rows, func(x, y row) int { return cmp.Compare(placeOrder(x.place), placeOrder(y.place)) })
	for n, r := range b.rows {
		fmt.Fprintf(&w, "| %s | %s |", strings.ReplaceAll(r.idiom, "|", `\|`), r.place)
		for _, c := range b.columns {
			fmt.Fprintf(&w, " %s |", cell(r, n, c))
		}
		fmt.Fprintln(&w)
	}
	return w.Bytes()
}

func placeOrder(place string) int {
	return slices.Index([]string{inEach, inBatches, inOnFailure, inReplay, inBackground}, place)
}

// complete returns a cell: the outcome of all modes of the column, with the modes that differ by
// name.
func (b *table) complete(r row, _ int, column string) string {
	modes := b.cells[r][column]
	if len(modes) == 0 {
		return ""
	}
	count := map[string]int{}
	for _, o := range modes {
		count[o]++
	}
	var most string
	for o, n := range count {
		if n > count[most] || n == count[most] && o < most {
			most = o
		}
	}
	said := cmp.Or(most, "not played")
	for _, mode := range slices.Sorted(maps.Keys(modes)) {
		if o := modes[mode]; o != most {
			said += fmt.Sprintf("; %s: %s", mode, cmp.Or(o, "not played"))
		}
	}
	return said
}

// missing returns the complete cell if all of it ran, and otherwise the cell of the file.
func (b *table) missing(lines []string) func(r row, n int, column string) string {
	return func(r row, n int, column string) string {
		for _, o := range b.cells[r][column] {
			if o == "" && n+2 < len(lines) {
				cells := strings.Split(lines[n+2], " | ")
				if at := 2 + slices.Index(b.columns, column); at < len(cells) {
					return strings.TrimSuffix(cells[at], " |")
				}
			}
		}
		return b.complete(r, n, column)
	}
}
