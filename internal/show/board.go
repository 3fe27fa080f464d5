package show

import (
	"io"
	"log"
	"time"
)

// Board displays a show. It is safe for concurrent use.
type Board struct {
	out   *log.Logger
	begin time.Time
}

// NewBoard returns a board that writes to w.
func NewBoard(w io.Writer) *Board { return &Board{log.New(w, "", 0), time.Now()} }

// Print writes a line.
func (b *Board) Print(line string) { b.out.Print(line) }

// Event writes a line with the time since the board was made, and the column's name.
func (b *Board) Event(column, line string) {
	b.out.Printf("%5.1f s  %-8s  %s", b.Elapsed().Seconds(), column, line)
}

// Elapsed returns the time since the board was made.
func (b *Board) Elapsed() time.Duration { return time.Since(b.begin) }
