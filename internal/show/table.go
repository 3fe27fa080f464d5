package show

import (
	"fmt"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
)

// Row is one line of a column's table. The tables of all columns have the same labels.
type Row struct{ Label, Value string }

func table(cs []*Column) string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 3, ' ', tabwriter.AlignRight)
	line := func(label string, value func(*Column) string) {
		fmt.Fprintf(w, "%-25s\t", label)
		for _, c := range cs {
			fmt.Fprintf(w, "%s\t", value(c))
		}
		fmt.Fprintln(w)
	}
	line("", func(c *Column) string { return c.Name })
	for i, r := range cs[0].Rows {
		line(r.Label, func(c *Column) string { return c.Rows[i].Value })
	}
	_ = w.Flush()
	head, rows, _ := strings.Cut(b.String(), "\n")
	return head + "\n   " + strings.Repeat("-", len(head)-3) + "\n" + rows
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
