package show

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"
)

// columns is the width of all output.
const columns = 80

// Board displays a show: permanent lines and, on a terminal, a live block of lines below them. It
// is safe for concurrent use.
type Board struct {
	w     io.Writer
	live  bool
	color bool
	begin time.Time

	mu     sync.Mutex
	status func() []string
	drawn  int // lines of the block on the screen
}

// NewBoard returns a board that writes to w. The live block and colours need a terminal; colours
// also need NO_COLOR to be unset.
func NewBoard(w io.Writer) *Board {
	live := isTerminal(w) && os.Getenv("TERM") != "dumb"
	return &Board{w: w, live: live, color: live && os.Getenv("NO_COLOR") == "", begin: time.Now()}
}

// isTerminal is also true of /dev/null, which does no harm.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// Print writes a permanent line.
func (b *Board) Print(line string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.erase()
	fmt.Fprintln(b.w, line)
	b.draw()
}

// Event writes a permanent line with the time since the board was made, and the column's name.
func (b *Board) Event(column, line string) {
	head := fmt.Sprintf("%5.1f s  %-10s  ", time.Since(b.begin).Seconds(), column)
	b.Print(head + wrap(line, len(head)))
}

// Table writes a permanent table, with right-aligned columns.
func (b *Board) Table(heads []string, rows []Row) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.erase()
	writeTable(b.w, b.color, heads, rows)
	b.draw()
}

// Columns writes a permanent table with a column for each of cs.
func (b *Board) Columns(cs []*Column, rows []Row) {
	heads := make([]string, len(cs))
	for i, c := range cs {
		heads[i] = c.Name
	}
	b.Table(heads, rows)
}

func wrap(line string, indent int) string {
	var b strings.Builder
	at := indent
	for i, word := range strings.Fields(line) {
		switch {
		case i == 0:
		case at+1+len(word) > columns:
			b.WriteString("\n" + strings.Repeat(" ", indent))
			at = indent
		default:
			b.WriteByte(' ')
			at++
		}
		b.WriteString(word)
		at += len(word)
	}
	return b.String()
}

// Watch updates the live block until ctx ends, and then removes it. Without a terminal it does
// nothing.
func (b *Board) Watch(ctx context.Context, status func() []string) {
	if !b.live {
		return
	}
	b.mu.Lock()
	b.status = status
	b.mu.Unlock()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for ctx.Err() == nil {
		b.mu.Lock()
		b.erase()
		b.draw()
		b.mu.Unlock()
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.erase()
	b.status = nil
}

func (b *Board) erase() {
	if b.drawn > 0 {
		fmt.Fprintf(b.w, "\r\x1b[%dA\x1b[J", b.drawn)
		b.drawn = 0
	}
}

func (b *Board) draw() {
	if b.status == nil {
		return
	}
	for _, line := range b.status() {
		if len(line) >= columns {
			line = line[:columns-1]
		}
		fmt.Fprintln(b.w, line)
		b.drawn++
	}
}

// Elapsed returns the time since the board was made.
func (b *Board) Elapsed() time.Duration { return time.Since(b.begin) }
