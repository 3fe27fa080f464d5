package main

import (
	"context"
	"net/http"
	"time"

	"github.com/epochfence/epochfence/consumer/natssource"
	"github.com/epochfence/epochfence/internal/show"
)

type config struct {
	Worker string // its name in the ledger

	NATS      string
	Stream    string
	Transform natssource.Transform
	Group     string        // and bucket of the leases, or durable consumer
	Lease     time.Duration // after which a silent worker's partitions or messages go to others

	Gateway string        // its URL
	Timeout time.Duration // of a request to the gateway
}

func (*payments) Work(ctx context.Context, stage *show.Stage) error {
	var c config
	if err := stage.Config(&c); err != nil {
		return err
	}
	js, err := connect(c.NATS, c.Group+" "+c.Worker)
	if err != nil {
		return err
	}
	defer js.Conn().Close()
	switch {
	case stage.Column == show.Baseline:
		return baseline(ctx, c, js, stage)
	case stage.DB.Pool != nil:
		return payPostgres(ctx, c, js, stage.DB, stage)
	default:
		return paySQLite(ctx, c, js, stage.DB.DB, stage)
	}
}

// transport returns a transport that keeps enough connections to the one gateway.
func transport() *http.Transport {
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.MaxIdleConnsPerHost, t.MaxIdleConns = 256, 256
	t.Proxy = nil // the gateway is on this machine
	return t
}
