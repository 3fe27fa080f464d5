package show

import (
	"fmt"
	"io"
	"log"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/dustin/go-humanize"
)

// Board displays a show. It is safe for concurrent use.
type Board struct {
	out   *log.Logger
	begin time.Time
}

// NewBoard returns a board that writes to w.
func NewBoard(w io.Writer) *Board { return &Board{log.New(w, "", 0), time.Now()} }

// conclude prints the table and the result, and returns the exit code.
func conclude(b *Board, cs []*Column, evidence string) int {
	judged := slices.DeleteFunc(slices.Clone(cs), func(c *Column) bool { return c.Err != nil })
	if len(judged) > 0 {
		b.out.Printf("\n%s\nJudged from %s, after all workers had ended.", table(judged), evidence)
	}
	result, status := "exact", StatusExact
	for _, c := range cs {
		switch fenced := c.Name == Fence; {
		case c.Err != nil:
			b.out.Printf("%s: %v", c.Name, c.Err)
			if fenced {
				result, status = "NOT played to its end", StatusNot
			}
		case fenced && !c.Exact:
			result, status = "NOT exact", StatusNot
		case fenced:
		case c.Exact:
			result += "; the baseline's is exact too, this time"
		default:
			result += "; the baseline's is not exact"
		}
	}
	b.out.Printf("The fenced column is %s (%s).", result, seconds(time.Since(b.begin)))
	return status
}

// Row is one line of a column's table. The tables of all columns have the same labels.
type Row struct{ Label, Value string }

// Number returns a row with a number.
func Number(label string, n int) Row { return Row{label, Thousands(n)} }

// Holds returns a row that says "yes" if a condition holds that should, and otherwise what does not.
func Holds(label string, ok bool, otherwise string) Row {
	if ok {
		return Row{label, "yes"}
	}
	return Row{label, "no, " + otherwise}
}

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

// Thousands formats n with commas.
func Thousands(n int) string { return humanize.Comma(int64(n)) }

func seconds(d time.Duration) string { return fmt.Sprintf("%.1f s", d.Seconds()) }
