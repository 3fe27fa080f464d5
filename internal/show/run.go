package show

import (
	"context"
	"crypto/rand"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
)

// Exit codes of a show.
const (
	StatusExact  = 0 // the fenced column is exact
	StatusNot    = 1 // it is not exact, or could not be played
	StatusUsage  = 2
	StatusHalted = 130 // interrupted
)

// Show is one of the examples.
type Show interface {
	// Common returns the settings. Embedding [Settings] provides it.
	Common() *Settings
	// Flags adds the show's own flags.
	Flags(fs *flag.FlagSet)
	// Check checks them.
	Check() error
	// Open connects to the broker, or starts one in this process.
	Open(ctx context.Context) (closer func(), err error)
	// Introduce returns the lines at the beginning.
	Introduce() []string
	// Side returns what a column has of its own.
	Side(c *Column) Side
	// Work is a worker process.
	Work(ctx context.Context, stage *Stage) error
}

// Main is the main function of a show, in each of its processes.
func Main(show Show) {
	Enter(show.Work)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	os.Exit(Run(ctx, show, os.Args[1:], os.Stdout, os.Stderr))
}

// Run is the parent process of a show and returns its exit code.
func Run(ctx context.Context, show Show, args []string, out, errOut io.Writer) int {
	switch err := Parse(show, args, errOut); {
	case errors.Is(err, flag.ErrHelp):
		return StatusExact
	case err != nil:
		return StatusUsage
	}
	b := NewBoard(out)
	cs, err := Play(ctx, show, b)
	name := show.Common().Name
	switch {
	case ctx.Err() != nil:
		fmt.Fprintf(errOut, "%s: interrupted; the workers are stopped\n", name)
		return StatusHalted
	case err != nil:
		fmt.Fprintf(errOut, "%s: %s\n", name, strings.TrimPrefix(err.Error(), name+": "))
		return StatusNot
	}
	return Conclude(b, cs)
}

// Play plays the columns of a show, whose settings are complete, and cleans up. A column's own
// error is in its Err.
func Play(ctx context.Context, show Show, b *Board) (cs []*Column, err error) {
	s := show.Common()
	if s.Dir, err = os.MkdirTemp("", "epochfence-"+s.Name+"-"); err != nil {
		return nil, fmt.Errorf("make a temporary directory: %w", err)
	}
	defer func() { _ = os.RemoveAll(s.Dir) }()
	closer, err := show.Open(ctx)
	if err != nil {
		return nil, err
	}
	defer closer()
	for _, line := range show.Introduce() {
		b.Print(line)
	}
	id := strings.ToLower(rand.Text()[:8]) // for names on services that others use, too
	names := []string{Fence}
	if s.Naive {
		names = append(names, Baseline)
	}
	for _, name := range names {
		c := &Column{Name: name, ID: s.Name + "-" + id + "-" + name}
		c.Side = show.Side(c)
		cs = append(cs, c)
	}
	s.Stage(ctx, b, cs)
	return cs, nil
}

// Stage plays all columns at the same time.
func (s *Settings) Stage(ctx context.Context, b *Board, cs []*Column) {
	var playing sync.WaitGroup
	for _, c := range cs {
		playing.Go(func() { c.Err = c.play(ctx, s, b) })
	}
	playing.Wait()
}

// Conclude prints the table and what it means, and returns the exit code.
func Conclude(b *Board, cs []*Column) int {
	return ConcludeFrom(b, cs, "what is stored alone, after all workers had ended")
}

// ConcludeFrom is [Conclude], and says from what the columns were judged.
func ConcludeFrom(b *Board, cs []*Column, from string) int {
	judged := slices.DeleteFunc(slices.Clone(cs), func(c *Column) bool { return c.Err != nil })
	if len(judged) > 0 {
		b.Print("\n" + table(judged) + "\nJudged from " + from + ".")
	}
	for _, c := range cs {
		if c.Err != nil {
			b.Print(fmt.Sprintf("%s: %v", c.Name, c.Err))
		}
	}
	said, status := "exact", StatusExact
	switch f := cs[0]; {
	case f.Err != nil:
		said, status = "NOT played to its end", StatusNot
	case !f.Exact:
		said, status = "NOT exact", StatusNot
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
