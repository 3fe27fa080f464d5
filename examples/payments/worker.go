package main

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/epochfence/epochfence/consumer/natssource"
	"github.com/epochfence/epochfence/internal/show"
)

type config struct {
	Role   string // baseline, fenced or gateway
	Worker string // its name in the ledger

	NATS      string
	Stream    string
	Transform natssource.Transform
	Group     string        // and bucket of the leases, or durable consumer
	Lease     time.Duration // after which a silent worker's partitions or messages go to others

	Database string // a postgres:// URL or the path of a SQLite file
	Schema   string // in PostgreSQL

	Gateway string        // its URL, for workers
	Timeout time.Duration // of a request to the gateway
	Silent  int           // one of so many requests gets no answer
	Fenced  bool          // for the gateway: it requires epochs and idempotency keys
}

const roleGateway = "gateway"

func (*payments) Work(ctx context.Context, stage *show.Stage) error {
	var c config
	if err := stage.Config(&c); err != nil {
		return fmt.Errorf("payments: the configuration of a worker: %w", err)
	}
	if c.Role == roleGateway {
		if err := serveGateway(ctx, c, stage); err != nil {
			return fmt.Errorf("payments: gateway: %w", err)
		}
		return nil
	}
	db, err := show.OpenDatabase(ctx, c.Database, c.Schema)
	if err != nil {
		return err
	}
	defer db.Close()
	conn, js, err := connect(c.NATS, c.Group+" "+c.Worker)
	if err != nil {
		return err
	}
	defer conn.Close()
	switch {
	case c.Role == show.Baseline:
		err = baseline(ctx, c, js, db, stage)
	case db.Pool != nil:
		err = payPostgres(ctx, c, js, db.Pool, stage)
	default:
		err = paySQLite(ctx, c, js, db.DB, stage)
	}
	if err != nil {
		return fmt.Errorf("payments: %w", err)
	}
	return nil
}

// client returns the outbox's client, with the points at which incidents strike.
func (c config) client(stage *show.Stage) *http.Client {
	return &http.Client{Transport: show.Sending(transport(), stage)}
}

// transport returns a transport that keeps enough connections to the one gateway.
func transport() *http.Transport {
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.MaxIdleConnsPerHost, t.MaxIdleConns = 256, 256
	t.Proxy = nil // the gateway is on this machine
	return t
}
