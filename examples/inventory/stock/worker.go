package stock

import (
	"context"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/epochfence/epochfence/internal/show"
)

type config struct {
	Baseline bool
	Worker   string // its name in the ledger
	Brokers  []string
	Topic    string
	Group    string
	Database string        // a postgres:// URL or the path of a SQLite file
	Schema   string        // in PostgreSQL
	Store    string        // the URL of a store, instead of a database
	Session  time.Duration // the session timeout of the group's members
}

func (v *inventory) Work(ctx context.Context, stage *show.Stage) error {
	var c config
	if err := stage.Config(&c); err != nil {
		return fmt.Errorf("inventory: worker's configuration: %w", err)
	}
	if c.Store != "" {
		return v.workOnItems(ctx, c, stage)
	}
	db, err := show.OpenDatabase(ctx, c.Database, c.Schema)
	if err != nil {
		return err
	}
	defer db.Close()
	switch {
	case c.Baseline && db.Pool != nil:
		return baselinePostgres(ctx, c, db.Pool, stage)
	case c.Baseline:
		return baselineSQLite(ctx, c, db.DB, stage)
	case db.Pool != nil:
		return consumePostgres(ctx, c, db.Pool, stage)
	default:
		return consumeSQLite(ctx, c, db.DB, stage)
	}
}

// client returns the options of both columns' Kafka clients. They have the same timeouts, after
// which a silent worker loses its partitions.
func (c config) client() []kgo.Opt {
	return []kgo.Opt{
		kgo.SeedBrokers(c.Brokers...),
		kgo.ClientID(c.Group + "-" + c.Worker),
		kgo.SessionTimeout(c.Session),
		kgo.HeartbeatInterval(c.Session / 6),
		kgo.RebalanceTimeout(5 * c.Session / 2),
	}
}
