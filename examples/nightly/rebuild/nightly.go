// Package rebuild is the show of examples/nightly: a job that rebuilds a search index.
package rebuild

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/epochfence/epochfence/internal/freeport"
	"github.com/epochfence/epochfence/internal/show"
)

// Nightly is the show. Make one with [New].
type Nightly struct {
	Ticks   int // at least, of all jobs together
	Freezes int
	Kills   int
	Lease   string // the URL of the store of leases; "" starts a nats-server in this process
	Naive   bool   // play the baseline beside
	Seed    uint64 // of the chaos

	stores   []Store
	jobs     []string
	every    time.Duration // between two ticks
	ttl      time.Duration
	parts    int
	chaos    bool // incidents without a pause in between, at points that are drawn
	restarts int  // of the nats-server in this process

	dir     string
	objects string // host:port of the S3 server
	redis   string
	nats    *localNATS
}

// New returns the show, whose -lease knows these stores.
func New(stores ...Store) *Nightly {
	return &Nightly{
		Ticks: 10, Freezes: 2, Kills: 2, Naive: true, Seed: 1,
		stores: stores, jobs: []string{"search-index"}, every: 3 * time.Second, ttl: 1500 * time.Millisecond, parts: 8,
	}
}

// Main is the main function, in each process.
func (n *Nightly) Main() {
	show.Enter(n.Work)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	os.Exit(n.Run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// Run is the parent process. It returns its exit code.
func (n *Nightly) Run(ctx context.Context, args []string, out, errOut io.Writer) int {
	switch err := n.parse(args, errOut); {
	case errors.Is(err, flag.ErrHelp):
		return show.StatusExact
	case err != nil:
		return show.StatusUsage
	}
	b := show.NewBoard(out)
	cs, err := n.play(ctx, b)
	switch {
	case ctx.Err() != nil:
		fmt.Fprintln(errOut, "nightly: interrupted; the pods are stopped")
		return show.StatusHalted
	case err != nil:
		fmt.Fprintf(errOut, "nightly: %v\n", err)
		return show.StatusNot
	}
	return conclude(b, cs)
}

const most = 10_000 // protects the machine from a mistyped flag

func (n *Nightly) parse(args []string, out io.Writer) error {
	fs := flag.NewFlagSet("nightly", flag.ContinueOnError)
	fs.SetOutput(out)
	fs.IntVar(&n.Ticks, "ticks", n.Ticks, "builds of each column at least, one every 3 s, as a `number`")
	fs.IntVar(&n.Freezes, "freezes", n.Freezes, "pods that are frozen, as a `number`")
	fs.IntVar(&n.Kills, "kills", n.Kills, "pods that are killed, as a `number`")
	fs.StringVar(&n.Lease, "lease", "", "the store of leases, as a `URL`: "+urls(n.stores)+"; empty: a nats-server in this process")
	fs.BoolVar(&n.Naive, "naive", n.Naive, "play the baseline beside")
	if err := fs.Parse(args); err != nil {
		return err // reported by Parse
	}
	err := n.check(fs.Args())
	if err != nil {
		fmt.Fprintf(out, "nightly: %v\n", err)
	}
	return err
}

func (n *Nightly) check(rest []string) error {
	if len(rest) > 0 {
		return fmt.Errorf("unexpected argument %q; all settings are flags, see -help", rest[0])
	}
	for _, f := range []struct {
		name     string
		v, least int
	}{{"ticks", n.Ticks, 1}, {"freezes", n.Freezes, 0}, {"kills", n.Kills, 0}} {
		if f.v < f.least || f.v > most {
			return fmt.Errorf("-%s is %d; want %d to %d", f.name, f.v, f.least, most)
		}
	}
	if n.Lease == "" {
		return nil
	}
	_, err := find(n.stores, n.Lease)
	return err
}

// play plays the columns, and cleans up. A column's own error is in its Err.
func (n *Nightly) play(ctx context.Context, b *show.Board) (cs []*column, err error) {
	if n.dir, err = os.MkdirTemp("", "epochfence-nightly-"); err != nil {
		return nil, fmt.Errorf("make a temporary directory: %w", err)
	}
	defer func() { _ = os.RemoveAll(n.dir) }()
	closer, err := n.open(ctx)
	if err != nil {
		return nil, err
	}
	defer closer()
	for _, line := range n.introduce() {
		b.Print(line)
	}
	names := []string{show.Fence}
	if n.Naive {
		names = append(names, show.Baseline)
	}
	var playing sync.WaitGroup
	for _, name := range names {
		c := n.newColumn(name, b)
		cs = append(cs, c)
		playing.Go(func() { c.Err = c.play(ctx) })
	}
	playing.Wait()
	return cs, nil
}

// open starts the servers of this process.
func (n *Nightly) open(ctx context.Context) (closer func(), err error) {
	var stops []func()
	closer = func() {
		for _, stop := range stops {
			stop()
		}
	}
	keep := func(stop func(), err error) error {
		if err == nil {
			stops = append(stops, stop)
		}
		return err
	}
	var stop func()
	n.objects, stop, err = startObjects(ctx, n.dir)
	err = keep(stop, err)
	if err == nil && n.Naive {
		n.redis, stop, err = startRedis()
		err = keep(stop, err)
	}
	if err == nil {
		stop, err = n.openLeases(ctx)
		err = keep(stop, err)
	}
	if err != nil {
		closer()
		return nil, err
	}
	return closer, nil
}

// openLeases starts a nats-server, or sees that the store of -lease answers.
func (n *Nightly) openLeases(ctx context.Context) (stop func(), err error) {
	if n.Lease == "" {
		ports, err := freeport.Take(1)
		if err != nil {
			return nil, err
		}
		if n.nats, err = startNATS(n.dir, ports[0]); err != nil {
			return nil, err
		}
		return func() { n.nats.stop() }, nil
	}
	store, err := find(n.stores, n.Lease)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, show.Reachable)
	defer cancel()
	s, closer, err := store.Open(ctx, n.Lease)
	if err == nil {
		defer closer()
		_, err = s.Facts(ctx) // asks the server
	}
	if err != nil {
		return nil, fmt.Errorf("-lease: %w", err)
	}
	return func() {}, nil
}

// leases is the URL of the store of leases.
func (n *Nightly) leases() string {
	if n.nats != nil {
		return n.nats.url()
	}
	return n.Lease
}

func (n *Nightly) introduce() []string {
	where := n.Lease
	if where == "" {
		where = "a nats-server in this process"
	}
	return []string{
		fmt.Sprintf("A build of the index: every %v, %d parts of %d documents, and what names them; pods: 2 of each column", n.every, n.parts, documents),
		"Objects: versitygw, an S3 server, in this process; database: SQLite in a temporary directory",
		"Leases: " + where + "; the baseline has a lock with a time to live in Redis (miniredis)",
		"",
		"Frozen:  SIGSTOP in the middle of a build, or with its pointer in hand, until the other pod",
		"         has finished a later build; then SIGCONT.",
		"Killed:  SIGKILL in the middle of a build, or between its pointer and its record.",
		"A reader reads the whole index again and again.",
		"",
	}
}

func (n *Nightly) random(stream uint64) *rand.Rand { return rand.New(rand.NewPCG(n.Seed, stream)) }
