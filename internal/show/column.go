package show

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/dustin/go-humanize"

	"github.com/epochfence/epochfence/operate/statusz"
)

// The columns of a show.
const (
	Fence    = "fenced"
	Baseline = "baseline"
)

const (
	// Patience limits each wait. It is many times the usual duration.
	Patience  = time.Minute
	stopGrace = 20 * time.Second

	// often is the time between two looks at the database.
	often = 200 * time.Millisecond
)

// Side is the part of a column that differs between shows and columns.
type Side interface {
	// Prepare makes what the workers use: tables, topics, servers.
	Prepare(ctx context.Context) error
	// Config returns the configuration of the worker with this name, which is passed on as JSON.
	Config(worker string) any
	// Play returns once all incidents are over ([Column.Strike]) and all effects are in the database.
	Play(ctx context.Context) error
	// Elsewhere reports whether the database has effects of the subject of a transaction or request
	// that was stopped at a point, or later ones of its partition, that are not of this worker. ""
	// is none.
	Elsewhere(ctx context.Context, subject string, at Point, worker string) (bool, error)
	// Judge reports whether the workers' result is exact. The workers have ended by then.
	Judge(ctx context.Context) (exact bool, rows []Row, err error)
	// Close removes everything that the column made outside its database.
	Close() error
}

// Column is a running column of a show.
type Column struct {
	Name string // Fence or Baseline
	ID   string // names what it makes on its services
	Side Side
	DB   *Database       // made before Prepare
	Page statusz.Options // of the status page, set by Prepare
	Crew *Crew

	Exact bool // the result
	Rows  []Row
	Err   error // why there is no result

	board *Board
}

func (c *Column) play(ctx context.Context, s *Settings, b *Board) (err error) {
	c.board, c.Page.Title = b, s.Name
	if c.DB, err = NewDatabase(ctx, s, c.ID); err != nil {
		return err
	}
	c.Crew = newCrew(s.Worker, role{Column: c.Name, Database: c.DB.URL, Schema: c.DB.Schema}, c.Side.Config)
	c.Crew.elsewhere, c.Crew.unlocked = c.Side.Elsewhere, c.DB.unlocked
	defer func() {
		_ = c.Crew.Stop(0)
		if err := errors.Join(c.Side.Close(), c.DB.Drop()); err != nil {
			c.Event("not all could be cleaned up: " + err.Error())
		}
	}()
	if err := c.Side.Prepare(ctx); err != nil {
		return err
	}
	if c.Name == Fence && s.HTTP != "" {
		page, err := serveStatus(s.HTTP, c.Page)
		if err != nil {
			return err
		}
		defer func() { _ = page.Close() }()
		c.Crew.role.HTTP = s.HTTP
	}
	for range s.Workers {
		if _, err := c.Crew.Start(); err != nil {
			return err
		}
	}
	if err = c.Side.Play(ctx); err == nil {
		err = c.Crew.Stop(stopGrace)
	}
	if err != nil {
		_ = c.Crew.Stop(0) // so that the logs are complete
		return fmt.Errorf("%w%s", err, c.Crew.logs())
	}
	c.Exact, c.Rows, err = c.Side.Judge(ctx)
	c.Rows = append(c.Rows, Number("commits refused as stale", c.Crew.Outcomes(Stale)), Number("transactions cut off", c.Crew.Outcomes(CutOff)))
	return err
}

// Event displays a line, with the time since the beginning of the show.
func (c *Column) Event(line string) {
	c.board.out.Printf("%5.1f s  %-8s  %s", time.Since(c.board.begin).Seconds(), c.Name, line)
}

// Strike plays incidents one after the other. due returns once it is time for the n-th, from 0. Strike
// calls release once the worker waits for the message at which it will stop, and again for the messages
// at which another worker goes on.
func (c *Column) Strike(ctx context.Context, incidents []Incident, due func(ctx context.Context, n int) error, release func()) error {
	for n, in := range incidents {
		if err := due(ctx, n); err != nil {
			return err
		}
		line, err := c.Crew.strike(ctx, in, release)
		if err != nil {
			return fmt.Errorf("incident %d of %d: %w", n+1, len(incidents), err)
		}
		c.Event(line)
	}
	return nil
}

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
