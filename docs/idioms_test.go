package docs

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// The tests of the sinks compare their outcomes with these tables. The page has all of
// them in one.
var idiomTables = []string{
	"sinks/pgsink/testdata/TestIdioms.md",
	"sinks/pgsink/testdata/TestIdiomsQueued.md",
	"sinks/sqlsink/testdata/TestIdioms.md",
	"sinks/memsink/testdata/TestIdioms.md",
}

const idiomsMark = "<!-- the rest is written by: make idioms IDIOMS=-idioms.update -->\n\n"

func TestThePageOfHandlersHasTheTablesOfTheSinks(t *testing.T) {
	const path = "docs/what-a-handler-may-do.md"
	page := read(t, path)
	before, _, marked := strings.Cut(page, idiomsMark)
	if !marked {
		t.Fatalf("%s lacks %q", path, idiomsMark)
	}
	var all idiomTable
	for _, file := range idiomTables {
		all.add(t, read(t, file))
	}
	want := before + idiomsMark + all.markdown()
	switch {
	case want == page:
	case *update:
		if err := os.WriteFile(filepath.Join("..", path), []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	default:
		t.Fatalf("the table in %s is not that of the sinks: run make idioms", path)
	}
}

// idiomTable is a table whose first two columns, the idiom and its place, name a row.
type idiomTable struct {
	columns []string
	rows    []idiomRow
}

type idiomRow struct {
	idiom, place string
	cells        map[string]string // by column
}

// add puts the columns of a table beside those that there are.
func (a *idiomTable) add(t *testing.T, table string) {
	lines := strings.Split(strings.TrimSpace(table), "\n")
	columns := idiomCells(lines[0])[2:]
	a.columns = append(a.columns, columns...)
	at := 0 // where a row is put that there is not yet
	for _, line := range lines[2:] {
		cells := idiomCells(line)
		if len(cells) != len(columns)+2 || strings.Contains(line, "WRONG") || strings.Contains(line, "not played") {
			t.Fatalf("a line that is no outcome: %s", line)
		}
		i := slices.IndexFunc(a.rows, func(r idiomRow) bool { return r.idiom == cells[0] && r.place == cells[1] })
		if i < 0 {
			i = at
			a.rows = slices.Insert(a.rows, i, idiomRow{cells[0], cells[1], map[string]string{}})
		}
		for n, c := range columns {
			a.rows[i].cells[c] = cells[n+2]
		}
		at = i + 1
	}
}

func idiomCells(line string) []string {
	cells := strings.Split(strings.TrimSuffix(strings.TrimPrefix(line, "| "), " |"), " | ")
	for i := range cells {
		cells[i] = strings.TrimSpace(cells[i])
	}
	return cells
}

func (a *idiomTable) markdown() string {
	var w strings.Builder
	w.WriteString("| a handler that … | in | " + strings.Join(a.columns, " | ") + " |\n")
	w.WriteString("|---|---|" + strings.Repeat("---|", len(a.columns)) + "\n")
	for _, r := range a.rows {
		w.WriteString("| " + r.idiom + " | " + r.place + " |")
		for _, c := range a.columns {
			w.WriteString(" " + r.cells[c] + " |")
		}
		w.WriteString("\n")
	}
	return w.String()
}
