package rebuild

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/cas/natsstore"
	"github.com/epochfence/epochfence/cas/pgstore"
	"github.com/epochfence/epochfence/internal/localnats"
)

// Store is a kind of store that can have the leases.
type Store struct {
	Schemes []string // of its URLs
	URL     string   // an example
	// Open connects to the server at a URL. If it fails, it leaves nothing open.
	Open func(ctx context.Context, url string) (s cas.Store, closer func(), err error)
}

// NATS and Postgres are in this module, because their clients are in the program in any case.
var (
	NATS     = Store{[]string{"nats"}, "nats://HOST:PORT/BUCKET", openNATS}
	Postgres = Store{[]string{"postgres", "postgresql"}, "postgres://…", openPostgres}
)

func urls(stores []Store) string {
	var all []string
	for _, s := range stores {
		all = append(all, s.URL)
	}
	return strings.Join(all, ", ")
}

// find returns the store of a URL.
func find(stores []Store, url string) (Store, error) {
	scheme, _, _ := strings.Cut(url, "://")
	for _, s := range stores {
		for _, known := range s.Schemes {
			if scheme == known {
				return s, nil
			}
		}
	}
	return Store{}, fmt.Errorf("-lease is none of %s", urls(stores))
}

func openNATS(ctx context.Context, at string) (cas.Store, func(), error) {
	u, err := url.Parse(at)
	if err != nil {
		return nil, nil, err
	}
	name := strings.Trim(u.Path, "/")
	if name == "" {
		return nil, nil, errors.New("name the bucket, as in nats://HOST:PORT/BUCKET")
	}
	u.Path = ""
	nc, err := nats.Connect(u.String(), nats.MaxReconnects(-1), nats.ReconnectWait(100*time.Millisecond))
	if err != nil {
		return nil, nil, err
	}
	js, err := jetstream.New(nc)
	if err == nil {
		var s cas.Store
		if s, err = natsstore.Open(ctx, js, natsstore.Options{Bucket: name}); err == nil {
			return s, nc.Close, nil
		}
	}
	nc.Close()
	return nil, nil, err
}

func openPostgres(ctx context.Context, at string) (cas.Store, func(), error) {
	pool, err := pgxpool.New(ctx, at)
	if err != nil {
		return nil, nil, err
	}
	err = pgstore.Migrate(ctx, pool, pgstore.Options{})
	if err == nil {
		var s cas.Store
		if s, err = pgstore.Open(ctx, pool, pgstore.Options{}); err == nil {
			return s, pool.Close, nil
		}
	}
	pool.Close()
	return nil, nil, err
}

// localNATS is a nats-server in this process that can be restarted.
type localNATS struct {
	dir  string
	port int
	stop func()
}

func startNATS(dir string, port int) (*localNATS, error) {
	_, stop, err := localnats.StartAt(dir, port)
	return &localNATS{dir, port, stop}, err
}

func (l *localNATS) url() string { return fmt.Sprintf("nats://127.0.0.1:%d/leases", l.port) }

// restart stops the server, and starts it again with its streams, at its port.
func (l *localNATS) restart() (err error) {
	l.stop()
	_, l.stop, err = localnats.StartAt(l.dir, l.port)
	return err
}
