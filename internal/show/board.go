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

// Board displays a show: lines and, on a terminal, a live line below them. It is safe for
// concurrent use.
type Board struct {
	w     io.Writer
	live  bool
	begin time.Time
	mu    sync.Mutex
}

// NewBoard returns a board that writes to w.
func NewBoard(w io.Writer) *Board {
	b := &Board{w: w, begin: time.Now()}
	if f, ok := w.(*os.File); ok {
		info, err := f.Stat()
		b.live = err == nil && info.Mode()&os.ModeCharDevice != 0 && os.Getenv("TERM") != "dumb"
	}
	return b
}

// Print writes a line.
func (b *Board) Print(line string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.erase()
	fmt.Fprintln(b.w, line)
}

// Event writes a line with the time since the board was made, and the column's name.
func (b *Board) Event(column, line string) {
	head := fmt.Sprintf("%5.1f s  %-10s  ", time.Since(b.begin).Seconds(), column)
	b.Print(head + wrap(line, len(head)))
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

// Watch updates the live line until ctx ends, and then removes it. Without a terminal it does
// nothing.
func (b *Board) Watch(ctx context.Context, status func() string) {
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for b.live && ctx.Err() == nil {
		line := fmt.Sprintf("%5.1f s  %s", b.Elapsed().Seconds(), status())
		b.mu.Lock()
		b.erase()
		fmt.Fprint(b.w, line[:min(len(line), columns-1)])
		b.mu.Unlock()
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.erase()
}

func (b *Board) erase() {
	if b.live {
		fmt.Fprint(b.w, "\r\x1b[K")
	}
}

// Elapsed returns the time since the board was made.
func (b *Board) Elapsed() time.Duration { return time.Since(b.begin) }
