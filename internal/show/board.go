package show

import (
	"fmt"
	"io"
	"sync"
	"time"
)

// Board displays a show. It is safe for concurrent use.
type Board struct {
	w     io.Writer
	begin time.Time
	mu    sync.Mutex
}

// NewBoard returns a board that writes to w.
func NewBoard(w io.Writer) *Board { return &Board{w: w, begin: time.Now()} }

// Print writes a line.
func (b *Board) Print(line string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	fmt.Fprintln(b.w, line)
}

// Event writes a line with the time since the board was made, and the column's name.
func (b *Board) Event(column, line string) {
	b.Print(fmt.Sprintf("%5.1f s  %-8s  %s", b.Elapsed().Seconds(), column, line))
}

// Elapsed returns the time since the board was made.
func (b *Board) Elapsed() time.Duration { return time.Since(b.begin) }
