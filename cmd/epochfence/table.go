package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/mattn/go-runewidth"
	"golang.org/x/term"
)

// This file prints: tables that fit a terminal, or JSON. It escapes what a terminal would
// interpret.

func (a *app) show(v any, people func()) error {
	if a.flags.format != "json" {
		people()
		return nil
	}
	e := json.NewEncoder(a.out)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

func (a *app) say(format string, args ...any) { fmt.Fprintf(a.out, format+"\n", args...) }

// table prints rows for operators. A column whose title begins with '>' holds numbers. On a
// terminal nothing is cut: columns that do not fit continue on a line of their own, and the last one
// is wrapped below its row where it is longer than the rest of the line.
type table struct {
	titles []string
	rows   [][]string
}

const (
	// roomy is the minimum width, in columns, for the last column to stay in the line.
	roomy = 30

	gap    = "  "
	indent = "    " // of what continues a row
)

func newTable(titles ...string) *table { return &table{titles: titles} }

func (t *table) row(cells ...any) {
	row := make([]string, len(t.titles))
	for i, c := range cells {
		row[i] = printable(fmt.Sprint(c))
	}
	t.rows = append(t.rows, row)
}

func (t *table) print(out io.Writer) { t.printTo(out, columns(out)) }

// printTo prints for a terminal of most columns. Zero means no terminal.
func (t *table) printTo(out io.Writer, most int) {
	titles := make([]string, len(t.titles))
	widths := make([]int, len(t.titles))
	for i, title := range t.titles {
		titles[i] = strings.TrimPrefix(title, ">")
	}
	rows := append([][]string{titles}, t.rows...)
	for _, r := range rows {
		for i, cell := range r {
			widths[i] = max(widths[i], width(cell))
		}
	}
	last := len(titles) - 1
	begins, used := []int{0}, 0 // the first column of each line
	for i, w := range widths {
		if i == last {
			w = min(w, roomy)
		}
		if most > 0 && i > 0 && used+w > most {
			begins, used = append(begins, i), len(indent)
		}
		used += w + len(gap)
	}
	for _, r := range rows {
		for n, begin := range begins {
			end := len(titles)
			if n+1 < len(begins) {
				end = begins[n+1]
			}
			line := t.line(r, begin, end, widths)
			if n > 0 {
				line = indent + line
			}
			if below := most > 0 && end > last && width(line) > most; below {
				if begin < last {
					line = t.line(r, begin, last, widths)
					if n > 0 {
						line = indent + line
					}
					fmt.Fprintln(out, line)
				}
				line = indent + strings.ReplaceAll(wrap(r[last], most-len(indent)), "\n", "\n"+indent)
			}
			if strings.TrimSpace(line) != "" {
				fmt.Fprintln(out, line)
			}
		}
	}
}

func (t *table) line(cells []string, begin, end int, widths []int) string {
	var b strings.Builder
	for i := begin; i < end; i++ {
		pad := strings.Repeat(" ", widths[i]-width(cells[i]))
		if strings.HasPrefix(t.titles[i], ">") {
			b.WriteString(pad + cells[i] + gap)
		} else {
			b.WriteString(cells[i] + pad + gap)
		}
	}
	return strings.TrimRight(b.String(), " ")
}

// width returns the columns that s takes on a terminal.
func width(s string) int { return runewidth.StringWidth(s) }

// wrap breaks s between words. A word that is wider than most stays whole.
func wrap(s string, most int) string {
	var b strings.Builder
	at := 0
	for word := range strings.FieldsSeq(s) {
		w := width(word)
		switch {
		case at == 0:
		case at+1+w > most:
			b.WriteByte('\n')
			at = 0
		default:
			b.WriteByte(' ')
			at++
		}
		b.WriteString(word)
		at += w
	}
	return b.String()
}

// columns returns the width of the terminal, or zero if out is none.
func columns(out io.Writer) int {
	if !isTerminal(out) {
		return 0
	}
	width, _, err := term.GetSize(int(out.(*os.File).Fd())) //nolint:forcetypeassert // a terminal is a file
	if err != nil {
		return 0
	}
	return width
}

func isTerminal(stream any) bool {
	f, ok := stream.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// printable escapes what a terminal would interpret, because others choose names, reasons and
// errors.
func printable(s string) string {
	if !strings.ContainsFunc(s, odd) && utf8.ValidString(s) {
		return s
	}
	var b strings.Builder
	for _, r := range strings.ToValidUTF8(s, "\ufffd") {
		if odd(r) {
			q := strconv.QuoteRune(r)
			b.WriteString(q[1 : len(q)-1])
		} else {
			b.WriteRune(r)
		}
	}
	return b.String()
}

func odd(r rune) bool { return !unicode.IsPrint(r) && r != ' ' }

func stamp(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.UTC().Format("2006-01-02T15:04:05Z")
}

func ago(now, t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return age(now.Sub(t))
}

func age(d time.Duration) string {
	switch d = max(d, 0); {
	case d < 2*time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < 2*time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	default:
		return fmt.Sprintf("%dd", int(d.Hours()/24))
	}
}

func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func count(n int64, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
