package show

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Row is one line of a column's table. The tables of all columns have the same labels.
type Row struct{ Label, Value string }

func table(cs []*Column) string {
	lines := []string{""}
	for _, r := range cs[0].Rows {
		lines = append(lines, r.Label)
	}
	pad := func(format string, cells []string) { // appends cells to lines, all of one width
		width := 0
		for _, cell := range cells {
			width = max(width, len(cell))
		}
		for i, cell := range cells {
			lines[i] += fmt.Sprintf(format, width-len(cell), "", cell)
		}
	}
	labels := lines
	lines = make([]string, len(labels))
	pad("  %[3]s%[1]*[2]s", labels)
	for _, c := range cs {
		cells := []string{c.Name}
		for _, r := range c.Rows {
			cells = append(cells, r.Value)
		}
		pad("   %*s%s", cells)
	}
	return strings.Join(slices.Insert(lines, 1, "  "+strings.Repeat("-", len(lines[0])-2)), "\n")
}

// Yes returns "yes" if a condition holds that should, and otherwise the text.
func Yes(ok bool, otherwise string) string {
	if ok {
		return "yes"
	}
	return otherwise
}

// Thousands formats n with commas.
func Thousands(n int) string {
	s := strconv.Itoa(n)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// Seconds formats d as "6.4 s".
func Seconds(d time.Duration) string { return fmt.Sprintf("%.1f s", d.Seconds()) }
