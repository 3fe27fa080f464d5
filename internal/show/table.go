package show

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Mood is the verdict on a cell.
type Mood int

// Only Good and Bad are coloured, and only on a terminal.
const (
	Plain Mood = iota
	Good
	Bad
)

// Cell is one figure of a table.
type Cell struct {
	Text string
	Mood Mood
}

// Row is one line of a table.
type Row struct {
	Label string
	Cells []Cell
}

// None is a cell for a count that should be zero.
func None(n int) Cell {
	if n == 0 {
		return Cell{"0", Good}
	}
	return Cell{Thousands(n), Bad}
}

// Number is a cell for a count without a verdict.
func Number(n int) Cell { return Cell{Text: Thousands(n)} }

// Yes is a cell for a condition that should hold. It has the text otherwise if the condition fails.
func Yes(ok bool, otherwise string) Cell {
	if ok {
		return Cell{"yes", Good}
	}
	return Cell{otherwise, Bad}
}

// Spread is a cell with the median and the maximum of some durations.
func Spread(ds []time.Duration) Cell {
	if len(ds) == 0 {
		return Cell{Text: "-"}
	}
	ds = slices.Sorted(slices.Values(ds))
	return Cell{Text: Seconds(ds[len(ds)/2]) + ", " + Seconds(ds[len(ds)-1])}
}

// RowOf returns a row with a cell for each of cs.
func RowOf[T any](label string, cs []T, cell func(T) Cell) Row {
	r := Row{Label: label}
	for _, c := range cs {
		r.Cells = append(r.Cells, cell(c))
	}
	return r
}

func writeTable(w io.Writer, color bool, heads []string, rows []Row) {
	label := 0
	widths := make([]int, len(heads))
	for i, h := range heads {
		widths[i] = len(h)
	}
	for _, r := range rows {
		label = max(label, len(r.Label))
		for i, c := range r.Cells {
			widths[i] = max(widths[i], len(c.Text))
		}
	}
	var b strings.Builder
	rule := label + 2
	fmt.Fprintf(&b, "  %-*s", label, "")
	for i, h := range heads {
		fmt.Fprintf(&b, "   %*s", widths[i], h)
		rule += 3 + widths[i]
	}
	fmt.Fprintf(&b, "\n  %s\n", strings.Repeat("-", rule-2))
	for _, r := range rows {
		fmt.Fprintf(&b, "  %-*s", label, r.Label)
		for i, c := range r.Cells {
			fmt.Fprintf(&b, "   %s", paint(color, c.Mood, fmt.Sprintf("%*s", widths[i], c.Text)))
		}
		b.WriteByte('\n')
	}
	_, _ = io.WriteString(w, b.String())
}

func paint(color bool, m Mood, s string) string {
	switch {
	case color && m == Good:
		return "\x1b[32m" + s + "\x1b[0m"
	case color && m == Bad:
		return "\x1b[31m" + s + "\x1b[0m"
	default:
		return s
	}
}

// Thousands formats n with commas.
func Thousands(n int) string {
	s := strconv.Itoa(n)
	digits := strings.TrimPrefix(s, "-")
	var b strings.Builder
	b.WriteString(s[:len(s)-len(digits)])
	for i, d := range digits {
		if i > 0 && (len(digits)-i)%3 == 0 {
			b.WriteByte(',')
		}
		b.WriteRune(d)
	}
	return b.String()
}

// Seconds formats d as "6.4 s".
func Seconds(d time.Duration) string { return fmt.Sprintf("%.1f s", d.Seconds()) }
