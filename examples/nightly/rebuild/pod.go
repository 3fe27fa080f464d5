package rebuild

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/bsm/redislock"
	"github.com/redis/go-redis/v9"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/internal/show"
	"github.com/epochfence/epochfence/internal/waits"
)

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
