package rebuild

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/internal/reach"
	"github.com/epochfence/epochfence/internal/show"
)

// config is what a pod, which is a process of its own, is configured with.
type config struct {
	Baseline bool
	ID       string // of the column: its group, and what its objects' names begin with
	Jobs     []string
	Every    time.Duration // between two ticks
	TTL      time.Duration // of leases, and of the baseline's lock
	Parts    int
	Database string // the path of a SQLite file
	Objects  string // host:port of the S3 server
	Leases   string // the URL of a store
	Redis    string // host:port, of the baseline's lock
}

// Work implements [show.Enter].
func (n *Nightly) Work(ctx context.Context, stage *show.Stage) error {
	var c config
	if err := stage.Config(&c); err != nil {
		return fmt.Errorf("nightly: pod's configuration: %w", err)
	}
	db, err := show.OpenDatabase(ctx, c.Database, "")
	if err != nil {
		return err
	}
	defer db.Close()
	if c.Baseline {
		return newUsual(c, db.DB, stage).run(ctx)
	}
	leases, closer, err := n.reachLeases(ctx, c.Leases)
	if err != nil {
		return fmt.Errorf("nightly: the store of leases: %w", err)
	}
	defer closer()
	objects := client(c.Objects)
	pointers, err := openPointers(ctx, objects, c.ID)
	if err != nil {
		return fmt.Errorf("nightly: the pointers: %w", err)
	}
	x := &index{objects, c.ID + "/", pointers, c.Parts}
	return x.run(ctx, c, leases, db.DB, stage)
}

// reachLeases waits for a store that is being restarted.
func (n *Nightly) reachLeases(ctx context.Context, url string) (s cas.Store, closer func(), err error) {
	store, err := find(n.stores, url)
	if err != nil {
		return nil, nil, err
	}
	server := reach.Server{
		Name: "the store of leases", Timeout: reach.Timeout, Log: slog.Default(),
		Patience: func(error) time.Duration { return reach.Timeout },
	}
	_, err = server.Wait(ctx, func(ctx context.Context) (err error) {
		s, closer, err = store.Open(ctx, url)
		return err
	})
	return s, closer, err
}
