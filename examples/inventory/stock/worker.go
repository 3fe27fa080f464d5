package stock

import (
	"context"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/internal/show"
)

type config struct {
	Worker  string // its name in the ledger
	Brokers []string
	Topic   string
	Group   string
	Store   string        // the URL of a store, instead of a database
	Session time.Duration // the session timeout of the group's members
}

func (v *inventory) Work(ctx context.Context, stage *show.Stage) error {
	var c config
	if err := stage.Config(&c); err != nil {
		return err
	}
	baseline, db := stage.Column == show.Baseline, stage.DB
	switch {
	case c.Store != "":
		store, closer, err := v.stores.Open(ctx, c.Store)
		if err != nil {
			return err
		}
		defer closer()
		if baseline {
			return baselineItems(ctx, c, store, stage)
		}
		return consumeItems(ctx, c, store, stage)
	case baseline && db.Pool != nil:
		return baselinePostgres(ctx, c, db.Pool, stage)
	case baseline:
		return baselineSQLite(ctx, c, db.DB, stage)
	case db.Pool != nil:
		return consumePostgres(ctx, c, db, stage)
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

// options observe a worker's transactions for -http, and let it be frozen.
func options(stage *show.Stage) consumer.Options {
	return consumer.Options{Observe: stage.Stats.Observe, HangTimeout: show.HangTimeout}
}
