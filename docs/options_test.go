package docs

import (
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/epochfence/epochfence/consumer"
)

// firstCells returns what the first column of the table under a heading has in backticks.
func firstCells(t *testing.T, page, heading string) []string {
	t.Helper()
	var names []string
	for _, row := range tableRows(t, page, heading) {
		for _, m := range quoted.FindAllStringSubmatch(row[0], -1) {
			names = append(names, m[1])
		}
	}
	return names
}

var quoted = regexp.MustCompile("`([^`]+)`")

// tableRows returns the cells of the first table under a heading, without the table's head.
func tableRows(t *testing.T, page, heading string) [][]string {
	t.Helper()
	_, section, found := strings.Cut(read(t, page), "\n"+heading+"\n")
	if !found {
		t.Fatalf("%s has no heading %q", page, heading)
	}
	_, table, found := strings.Cut(section, "\n|")
	if !found {
		t.Fatalf("%s: no table under %q", page, heading)
	}
	table, _, _ = strings.Cut("|"+table, "\n\n")
	var rows [][]string
	for _, line := range strings.Split(strings.TrimSpace(table), "\n")[2:] {
		cells := strings.Split(strings.Trim(line, "|"), "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		rows = append(rows, cells)
	}
	return rows
}

func TestTheTableOfOptionsHasEachField(t *testing.T) {
	var want []string
	for _, f := range reflect.VisibleFields(reflect.TypeFor[consumer.Options]()) {
		if f.IsExported() {
			want = append(want, f.Name)
		}
	}
	if has := firstCells(t, operating, "## Options of a consumer"); !slices.Equal(has, want) {
		t.Errorf("%s has the options %q; consumer.Options has %q", operating, has, want)
	}
}
