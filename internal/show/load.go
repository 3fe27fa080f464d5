package show

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/epochfence/epochfence/internal/waits"
)

// Load is the settings of a show whose workers consume messages.
type Load struct {
	Settings
	Partitions int
	Messages   int // of each column
	Duration   time.Duration
	Seed       uint64

	Rate    int           // messages per second, unless -duration says otherwise
	Every   time.Duration // between two incidents
	Freezes []Point       // the points of the freezes, in turn
	Kills   []Point       // the points of the kills, in turn
}

const (
	maxWorkers = 64 // protects the machine from a mistyped flag

	// perPartition is the minimum of messages, so that each incident finds some of each partition.
	perPartition = 100

	// shortest is the default minimum duration of a load: enough for a freeze, a kill and another
	// freeze.
	shortest = 24 * time.Second

	// burst is the time between two sends. Load comes in bursts, so that workers have more than one
	// message in hand.
	burst = 200 * time.Millisecond
)

// Flags adds the flags that all loads have.
func (l *Load) Flags(fs *flag.FlagSet) {
	fs.StringVar(&l.Database, "database", "", "postgres://… `URL`; empty: SQLite in a temporary directory")
	fs.IntVar(&l.Workers, "workers", 3, "worker processes of each column, 2 to 64, as a `number`")
	fs.IntVar(&l.Partitions, "partitions", 4, "partitions of the messages, 1 to 1000, as a `number`")
	fs.IntVar(&l.Messages, "messages", l.Messages, "messages of each column, 100 for each partition at least, 20 million at most, as a `number`")
	fs.DurationVar(&l.Duration, "duration", 0, fmt.Sprintf(
		"time to spread the messages over, a `duration` such as 30s; 0: 24 s, or a second for each %s messages where that is longer", Thousands(l.Rate)))
	fs.Uint64Var(&l.Seed, "seed", 1, "`number` from which the messages and the times of freezes and kills are drawn")
	fs.StringVar(&l.HTTP, "http", "", "`host:port`, such as :8080, to serve a status page of the fenced column at; its workers serve their metrics at the ports above")
}

// Check checks them, and sets the duration if it is 0.
func (l *Load) Check() error {
	err := errors.Join(
		Within("workers", l.Workers, 2, maxWorkers),
		Within("partitions", l.Partitions, 1, 1000),
		Within("messages", l.Messages, perPartition*l.Partitions, 20_000_000))
	if err != nil {
		return err
	}
	if l.Duration == 0 {
		l.Duration = max(shortest, time.Duration(l.Messages/l.Rate)*time.Second)
	}
	if l.Duration < time.Second {
		return fmt.Errorf("-duration is %v; want 0, or 1s and more", l.Duration)
	}
	if l.Database != "" && !IsPostgres(l.Database) {
		return errors.New("-database is no postgres:// URL")
	}
	if _, _, err := net.SplitHostPort(l.HTTP); err != nil && l.HTTP != "" {
		return fmt.Errorf("-http: %q is not host:port, such as :8080", l.HTTP)
	}
	if l.HTTP != "" { // said before the servers are started
		free, err := net.Listen("tcp", l.HTTP)
		if err != nil {
			return fmt.Errorf("-http: %w", err)
		}
		_ = free.Close()
	}
	return nil
}

// IsPostgres reports whether database is a PostgreSQL URL.
func IsPostgres(database string) bool {
	return strings.HasPrefix(database, "postgres://") || strings.HasPrefix(database, "postgresql://")
}

// Play sends the messages to a column's workers and strikes them meanwhile. It returns once all messages
// are applied. send sends the messages [from, to), and returns once the broker has acknowledged them.
// applied counts the messages whose effects are in the database.
func (l *Load) Play(ctx context.Context, c *Column,
	send func(ctx context.Context, from, to int) error, applied func(ctx context.Context) (int, error),
) error {
	incidents := l.incidents()
	p := newPace(l.Messages, l.Duration, len(incidents))
	random := rand.New(rand.NewPCG(l.Seed, 0x5ced))
	due := func(ctx context.Context, n int) error {
		share := (float64(n) + 0.4 + 0.3*random.Float64()) / float64(len(incidents)+1)
		return c.Crew.Poll(ctx, l.Duration+Patience, "the load until the incident is sent", func(context.Context) (bool, error) {
			return p.sent.Load() >= int64(share*float64(l.Messages)), nil
		})
	}
	loading, loadingCtx := errgroup.WithContext(ctx)
	loading.Go(func() error { return p.send(loadingCtx, send) })
	loading.Go(func() error { return c.Strike(loadingCtx, incidents, due, func() { p.held.Add(-1) }) })
	if err := loading.Wait(); err != nil {
		return err
	}
	// A slow machine may take long, so the limit is one without progress. The number falls once if records are
	// published: those that wait count against it when all messages are applied.
	for n := -1; n < l.Messages; {
		before := n
		what := fmt.Sprintf("progress after %d of %d messages", max(n, 0), l.Messages)
		err := c.Crew.Poll(ctx, Patience, what, func(ctx context.Context) (_ bool, err error) {
			n, err = applied(ctx)
			return n != before, err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// incidents returns freezes and kills in turn: one for each period of length Every, and at least a
// freeze and a kill. Each kind goes through its points in turn.
func (l *Load) incidents() []Incident {
	is := make([]Incident, max(2, int(l.Duration/l.Every)))
	for i := range is {
		is[i] = Incident{Kill: i%2 == 1, At: l.Freezes[i/2%len(l.Freezes)]}
		if is[i].Kill {
			is[i].At = l.Kills[i/2%len(l.Kills)]
		}
	}
	return is
}

// pace spreads a load evenly over a time. It holds back two shares for each coming incident, because
// an incident needs a message to strike at, and then one at which another worker goes on.
type pace struct {
	total int
	over  time.Duration
	share int
	sent  atomic.Int64
	held  atomic.Int64 // shares that are held back
}

func newPace(total int, over time.Duration, incidents int) *pace {
	p := &pace{total: total, over: over, share: total / (2 * (2*incidents + 1))}
	p.held.Store(2 * int64(incidents))
	return p
}

// due returns how many messages may be sent after this time.
func (p *pace) due(past time.Duration) int {
	due := p.total
	if past = past.Truncate(burst); past < p.over {
		due = int(float64(p.total) * past.Seconds() / p.over.Seconds())
	}
	return min(due, p.total-int(p.held.Load())*p.share)
}

func (p *pace) send(ctx context.Context, send func(ctx context.Context, from, to int) error) error {
	for began, from := time.Now(), 0; from < p.total; {
		if to := p.due(time.Since(began)); to > from {
			p.sent.Store(int64(to))
			if err := send(ctx, from, to); err != nil {
				return err
			}
			from = to
		} else if !waits.Sleep(ctx, burst) {
			return context.Cause(ctx)
		}
	}
	return nil
}
