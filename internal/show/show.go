package show

import (
	"context"
	"crypto/rand"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/epochfence/epochfence/internal/text/secret"
	"github.com/epochfence/epochfence/operate/statusz"
)

// Exit codes of a show.
const (
	StatusExact  = 0 // the fenced column is exact
	StatusNot    = 1 // it is not exact, or could not be played
	StatusUsage  = 2
	StatusHalted = 130 // interrupted
)

// Show is one of the examples. It embeds [Settings], or [Load] if it sends messages.
type Show interface {
	// Common returns the settings.
	Common() *Settings
	// Flags adds the show's flags.
	Flags(fs *flag.FlagSet)
	// Check checks them.
	Check() error
	// Open connects to the services of the show, or starts them in this process. What it passes to
	// atEnd is called at the end, in reverse order, also if Open fails.
	Open(ctx context.Context, atEnd func(stop func())) error
	// Introduce returns the lines at the beginning.
	Introduce() []string
	// Side returns what a column has of its own.
	Side(c *Column) Side
	// Work is a worker process.
	Work(ctx context.Context, stage *Stage) error
}

// Settings are the settings of every show.
type Settings struct {
	Name     string // of the program
	Worker   string // what a worker is called, before its number
	Workers  int    // of each column
	Evidence string // what the columns are judged from
	Naive    bool   // play the baseline beside
	Database string // a postgres:// URL; "" means SQLite in Dir
	HTTP     string // host:port of the status page; "" means none
	Dir      string // a temporary directory, removed at the end
}

// Common returns s.
func (s *Settings) Common() *Settings { return s }

// Main is the main function of a show, in each of its processes.
func Main(show Show) {
	Enter(show.Work)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	os.Exit(Run(ctx, show, os.Args[1:], os.Stdout, os.Stderr))
}

// Run is the parent process of a show and returns its exit code.
func Run(ctx context.Context, show Show, args []string, out, errOut io.Writer) int {
	urls := urlsOf(args)
	out, errOut = secret.Writer(out, urls...), secret.Writer(errOut, urls...)
	switch err := Parse(show, args, errOut); {
	case errors.Is(err, flag.ErrHelp):
		return StatusExact
	case err != nil:
		return StatusUsage
	}
	_, status, err := Play(ctx, show, out)
	name := show.Common().Name
	switch {
	case ctx.Err() != nil:
		fmt.Fprintf(errOut, "%s: interrupted; the workers are stopped\n", name)
		return StatusHalted
	case err != nil:
		fmt.Fprintf(errOut, "%s: %s\n", name, strings.TrimPrefix(err.Error(), name+": "))
	}
	return status
}

// Parse parses the flags of a show. If it fails, it has written the help or the mistake to out.
func Parse(show Show, args []string, out io.Writer) error {
	s := show.Common()
	if err := secret.Check(urlsOf(args)...); err != nil {
		fmt.Fprintf(out, "%s: %v\n", s.Name, err)
		return err
	}
	fs := flag.NewFlagSet(s.Name, flag.ContinueOnError)
	fs.SetOutput(out)
	fs.BoolVar(&s.Naive, "naive", true, "also run the baseline, a second column: the same workload without the fence")
	show.Flags(fs)
	if err := fs.Parse(args); err != nil {
		return err // reported by Parse
	}
	err := show.Check()
	if fs.NArg() > 0 {
		err = fmt.Errorf("unexpected argument %q; all settings are flags, see -help", fs.Arg(0))
	}
	if err != nil {
		fmt.Fprintf(out, "%s: %v\n", s.Name, err)
	}
	return err
}

// urlsOf returns the URLs among arguments.
func urlsOf(args []string) (urls []string) {
	for _, arg := range args {
		if strings.HasPrefix(arg, "-") {
			_, arg, _ = strings.Cut(arg, "=")
		}
		if strings.Contains(arg, "://") {
			urls = append(urls, arg)
		}
	}
	return urls
}

// Within returns an error unless the value of a flag is in a range.
func Within(flag string, value, least, most int) error {
	if value < least || value > most {
		return fmt.Errorf("-%s is %d; want %d to %d", flag, value, least, most)
	}
	return nil
}

// Play plays the columns of a show, whose settings are complete, writes the result to out, and cleans
// up. A column's own error is in its Err.
func Play(ctx context.Context, show Show, out io.Writer) (cs []*Column, status int, err error) {
	s, b := show.Common(), NewBoard(out)
	if s.Dir, err = os.MkdirTemp("", "epochfence-"+s.Name+"-"); err != nil {
		return nil, StatusNot, fmt.Errorf("make a temporary directory: %w", err)
	}
	defer func() { _ = os.RemoveAll(s.Dir) }()
	var stops []func()
	defer func() {
		for _, stop := range slices.Backward(stops) {
			stop()
		}
	}()
	if err := show.Open(ctx, func(stop func()) { stops = append(stops, stop) }); err != nil {
		return nil, StatusNot, err
	}
	for _, line := range show.Introduce() {
		b.out.Print(line)
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
	if ctx.Err() != nil {
		return cs, StatusHalted, nil
	}
	return cs, conclude(b, cs, s.Evidence), nil
}

// Stage plays all columns at the same time.
func (s *Settings) Stage(ctx context.Context, b *Board, cs []*Column) {
	var playing sync.WaitGroup
	for _, c := range cs {
		playing.Go(func() { c.Err = c.play(ctx, s, b) })
	}
	playing.Wait()
}

// serveStatus serves the status page of a group, as its database has it.
func serveStatus(address string, o statusz.Options) (*http.Server, error) {
	page, err := statusz.New(o)
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("-http: %w", err)
	}
	return Serve(l, page), nil
}

// serveMetrics serves the metrics of a worker at the first free port above the status page's.
func serveMetrics(address string, metrics http.Handler) {
	host, port, _ := net.SplitHostPort(address)
	first, _ := strconv.Atoi(port)
	for n := range maxWorkers {
		if l, err := net.Listen("tcp", net.JoinHostPort(host, strconv.Itoa(first+1+n))); err == nil {
			Serve(l, metrics)
			return
		}
	}
}

// Serve serves requests until the server is closed.
func Serve(l net.Listener, h http.Handler) *http.Server {
	s := &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = s.Serve(l) }()
	return s
}
