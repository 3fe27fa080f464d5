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

	"golang.org/x/term"
)

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
// terminal, the last column is cut at the end of the line, or gets a line of its own if it has too
// little room.
type table struct {
	titles []string
	rows   [][]string
}

// roomy is the minimum width, in columns, for the last column to stay in the line.
const roomy = 30

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
	lines := append([][]string{titles}, t.rows...)
	for _, l := range lines {
		for i, cell := range l {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	last, used := len(titles)-1, 0
	for _, w := range widths[:last] {
		used += w + len(gap)
	}
	folds := most > 0 && used+min(widths[last], roomy) > most
	for n, l := range lines {
		if !folds {
			fmt.Fprintln(out, cut(t.line(l, widths), most))
			continue
		}
		fmt.Fprintln(out, cut(t.line(l[:last], widths), most))
		if n > 0 && l[last] != "" {
			fmt.Fprintln(out, "    "+l[last])
		}
	}
}

const gap = "  "

func (t *table) line(cells []string, widths []int) string {
	var b strings.Builder
	for i, cell := range cells {
		pad := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell))
		if strings.HasPrefix(t.titles[i], ">") {
			b.WriteString(pad + cell + gap)
		} else {
			b.WriteString(cell + pad + gap)
		}
	}
	return strings.TrimRight(b.String(), " ")
}

func cut(s string, most int) string {
	if most <= 1 || utf8.RuneCountInString(s) <= most {
		return s
	}
	return string([]rune(s)[:most-1]) + "…"
}

// columns returns the width of the terminal, or zero if out is none.
func columns(out io.Writer) int {
	f, ok := out.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return 0
	}
	width, _, err := term.GetSize(int(f.Fd()))
	if err != nil {
		return 0
	}
	return width
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
