package show

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"
)

// Exit codes of a show.
const (
	StatusExact  = 0 // the fenced column is exact
	StatusNot    = 1 // it is not exact, or could not be played
	StatusUsage  = 2
	StatusHalted = 130 // interrupted
)

// Run is the parent process of a show and returns its exit code. parse reads the flags. play sets
// up, plays the columns and cleans up; if it returns columns with an error, they were played and
// something was not cleaned up. table prints the results of the judged columns.
func Run(ctx context.Context, name string, out, errOut io.Writer,
	parse func() error, play func(context.Context, *Board) ([]*Column, error), table func(*Board, []*Column),
) int {
	switch err := parse(); {
	case errors.Is(err, flag.ErrHelp):
		return StatusExact
	case err != nil:
		return StatusUsage
	}
	b := NewBoard(out)
	cs, err := play(ctx, b)
	switch {
	case ctx.Err() != nil:
		fmt.Fprintf(errOut, "%s: interrupted; the workers are stopped\n", name)
		if err != nil {
			complain(errOut, name, err)
		}
		return StatusHalted
	case err != nil && cs == nil:
		complain(errOut, name, err)
		return StatusNot
	case err != nil:
		fmt.Fprintf(errOut, "%s: not all could be cleaned up: %v\n", name, err)
	}
	return Conclude(b, cs, table)
}

// complain prints an error after the program's name. Errors of workers already begin with the name.
func complain(out io.Writer, name string, err error) {
	fmt.Fprintf(out, "%s: %s\n", name, strings.TrimPrefix(err.Error(), name+": "))
}

// Conclude prints the table and what it means.
func Conclude(b *Board, cs []*Column, table func(*Board, []*Column)) int {
	var judged []*Column
	for _, c := range cs {
		if c.Err != nil {
			b.Print(fmt.Sprintf("%s: %v", c.Name, c.Err))
		}
		if c.Judged {
			judged = append(judged, c)
		}
	}
	if len(judged) > 0 {
		b.Print("")
		table(b, judged)
	}
	for _, c := range cs {
		if c.kept != "" {
			b.Print(fmt.Sprintf("Kept, %s: %s", c.Name, c.kept))
		}
	}
	said, status := "exact", StatusExact
	switch f := cs[0]; {
	case f.Judged && !f.Exact:
		said, status = "NOT exact", StatusNot
	case !f.Judged || f.Err != nil:
		said, status = "NOT played to its end", StatusNot
	}
	for _, c := range judged {
		switch {
		case c.Name != Baseline:
		case c.Exact:
			said += "; the baseline's is exact too, this time"
		default:
			said += "; the baseline's is not exact"
		}
	}
	b.Print(fmt.Sprintf("The fenced column is %s (%s).", said, Seconds(b.Elapsed())))
	return status
}
