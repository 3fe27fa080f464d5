// Package rebuild is the show of examples/nightly: a job that rebuilds a search index.
package rebuild

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"strings"
	"time"

	"github.com/alicebob/miniredis/v2"

	"github.com/epochfence/epochfence/internal/show"
	"github.com/epochfence/epochfence/internal/show/stores"
	"github.com/epochfence/epochfence/internal/waits"
)

type nightly struct {
	show.Settings
	ticks   int // at least, of all jobs together
	freezes int
	kills   int
	lease   string // the URL of the store of leases, or "nats"
	stores  stores.Kinds

	jobs      []string
	every     time.Duration // between two ticks
	ttl       time.Duration
	parts     int
	incidents []show.Incident                         // set by Check
	disturb   func(ctx context.Context, incident int) // if not nil, called before each incident of the fenced column

	objects string // host:port of the S3 server
	redis   string
	leases  string // the URL of the store of leases
}

// New returns the show, whose -lease knows NATS, PostgreSQL and these stores.
func New(more ...stores.Kind) show.Show { return newNightly(more...) }

func newNightly(more ...stores.Kind) *nightly {
	return &nightly{
		Settings: show.Settings{
			Name: "nightly", Worker: "pod", Workers: 2, Evidence: "what the reader has read, and from what is stored",
		},
		stores: append(stores.Kinds{stores.NATS, postgres}, more...),
		jobs:   []string{"search-index"}, every: 3 * time.Second, ttl: 1500 * time.Millisecond, parts: 8,
	}
}

func (n *nightly) Flags(fs *flag.FlagSet) {
	fs.IntVar(&n.ticks, "ticks", 10, "builds of each column at least, one every 3 s, as a `number`")
	fs.IntVar(&n.freezes, "freezes", 2, "pods that are frozen, as a `number`")
	fs.IntVar(&n.kills, "kills", 2, "pods that are killed, as a `number`")
	fs.StringVar(&n.lease, "lease", "nats", "the store of leases, as a `URL`: "+n.stores.String())
}

const most = 10_000 // protects the machine from a mistyped flag

func (n *nightly) Check() error {
	n.incidents = inTurn(n.freezes, n.kills)
	return errors.Join(
		show.Within("ticks", n.ticks, 1, most),
		show.Within("freezes", n.freezes, 0, most),
		show.Within("kills", n.kills, 0, most),
		n.stores.Check("lease", n.lease))
}

// Open starts the servers of this process, and sees that the store of -lease answers.
func (n *nightly) Open(ctx context.Context, atEnd func(func())) (err error) {
	if n.objects, err = startObjects(ctx, n.Dir, atEnd); err != nil {
		return err
	}
	if n.redis, err = startRedis(atEnd); err != nil {
		return err
	}
	if n.leases, _, err = n.stores.Reach(ctx, n.lease, n.Dir, "leases", atEnd); err != nil {
		return fmt.Errorf("-lease: %w", err)
	}
	return nil
}

// startRedis starts miniredis in this process, whose times to live run down by this process's clock.
func startRedis(atEnd func(func())) (address string, err error) {
	m := miniredis.NewMiniRedis()
	if err := m.StartAddr("127.0.0.1:0"); err != nil {
		return "", fmt.Errorf("start miniredis: %w", err)
	}
	ctx, end := context.WithCancel(context.Background())
	atEnd(func() { end(); m.Close() })
	go func() {
		for last := time.Now(); waits.Sleep(ctx, 20*time.Millisecond); {
			now := time.Now()
			m.FastForward(now.Sub(last))
			last = now
		}
	}()
	return m.Addr(), nil
}

func (n *nightly) Introduce() []string {
	kind, _, _ := strings.Cut(n.lease, "://")
	return []string{
		fmt.Sprintf("A build of the index: every %v, %d parts of %d documents, and a pointer that lists the parts; pods: 2 of each column", n.every, n.parts, documents),
		"Objects: versitygw, an S3 server, in this process; database: SQLite in a temporary directory",
		"Leases: " + kind + "; the baseline has a lock with a time to live in Redis (miniredis)",
		"",
		"Frozen:  SIGSTOP in the middle of a build, or with its pointer in hand, until the other pod",
		"         has finished a later build; then SIGCONT.",
		"Killed:  SIGKILL in the middle of a build, or after its pointer is set, before its commit.",
		"A reader reads the whole index again and again.",
		"",
	}
}
