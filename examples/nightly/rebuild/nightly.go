// Package rebuild is the show of examples/nightly: a job that rebuilds a search index.
package rebuild

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/bsm/redislock"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/cas/pgstore"
	"github.com/epochfence/epochfence/internal/show"
	"github.com/epochfence/epochfence/internal/show/stores"
	"github.com/epochfence/epochfence/internal/waits"
	"github.com/epochfence/epochfence/sinks/pgsink"
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

// New returns the show.
func New() show.Show { return newNightly() }

func newNightly() *nightly {
	return &nightly{
		Settings: show.Settings{
			Name: "nightly", Worker: "pod", Workers: 2, Evidence: "what the reader has read, and from what is stored",
		},
		stores: stores.Kinds{stores.NATS, postgres},
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

// config is what a pod, which is a process of its own, is configured with.
type config struct {
	ID      string // of the column: its group, and what its objects' names begin with
	Jobs    []string
	Every   time.Duration // between two ticks
	TTL     time.Duration // of leases, and of the baseline's lock
	Parts   int
	Objects string // host:port of the S3 server
	Leases  string // the URL of a store
	Redis   string // host:port, of the baseline's lock
}

func (n *nightly) Work(ctx context.Context, stage *show.Stage) error {
	var c config
	if err := stage.Config(&c); err != nil {
		return err
	}
	objects := client(c.Objects)
	if stage.Column == show.Baseline {
		locks := redislock.New(redis.NewClient(&redis.Options{Addr: c.Redis}))
		return (&usual{c, objects, locks, stage}).run(ctx)
	}
	pointers, err := openPointers(ctx, objects, c.ID)
	if err != nil {
		return fmt.Errorf("nightly: the pointers: %w", err)
	}
	var (
		leases cas.Store
		closer func()
		server = waits.Server{ // which may be restarting
			Name: "the store of leases", Timeout: waits.Timeout, Log: slog.Default(),
			Patience: func(error) time.Duration { return waits.Timeout },
		}
	)
	_, err = server.Wait(ctx, func(ctx context.Context) (err error) {
		leases, closer, err = n.stores.Open(ctx, c.Leases)
		return err
	})
	if err != nil {
		return fmt.Errorf("nightly: the store of leases: %w", err)
	}
	defer closer()
	x := &index{objects, c.ID + "/", pointers, c.Parts}
	return x.run(ctx, c, leases, stage.DB.DB, stage)
}

var postgres = stores.Kind{
	Schemes: []string{"postgres", "postgresql"}, URL: "postgres://…",
	Open: func(ctx context.Context, at string) (cas.Store, func(), error) {
		pool, err := pgxpool.New(ctx, at)
		if err != nil {
			return nil, nil, err
		}
		if err := pgsink.Migrate(ctx, pool, pgsink.Options{}); err != nil {
			return stores.Opened(nil, err, pool.Close)
		}
		s, err := pgstore.Open(ctx, pool, pgstore.Options{})
		return stores.Opened(s, err, pool.Close)
	},
}
