package e2e_test

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/kafkasource"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/sinks/pgsink"
)

// takeoverEnv makes the test binary a worker process: a takeoverSpec in JSON.
const takeoverEnv = "EPOCHFENCE_E2E_TAKEOVER"

// takeoverSpec is what a worker process is told.
type takeoverSpec struct {
	Kafka, Database string // through the process's own proxies
	Topic, Group    string
	Name, Balancer  string
	Patience        time.Duration
}

func takeoverMain(packed string) error {
	var s takeoverSpec
	if err := json.Unmarshal([]byte(packed), &s); err != nil {
		return err
	}
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(3) // whoever started us is gone
	}()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	group := map[string]kgo.Opt{
		"range": kgo.Balancers(kgo.RangeBalancer()), "cooperative": kgo.Balancers(kgo.CooperativeStickyBalancer()), "KIP-848": kgo.ServerSideBalancer(),
	}[s.Balancer]
	quiet := slog.New(slog.DiscardHandler)
	source, err := kafkasource.New(kafkasource.Options{
		Group: s.Group, Topics: []string{s.Topic}, Logger: quiet,
		Client: []kgo.Opt{kgo.SeedBrokers(s.Kafka), kgo.ClientID(s.Name), group, kgo.Dialer(func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, s.Kafka) // whatever the broker advertises
		})},
	})
	if err != nil {
		return err
	}
	pool, err := pgxpool.New(ctx, s.Database)
	if err != nil {
		return err
	}
	defer pool.Close()
	sink, err := pgsink.Open(ctx, pool, pgsink.Options{Logger: quiet})
	if err != nil {
		return err
	}
	apply := func(ctx context.Context, tx pgsink.Tx, m consumer.Message, _ epoch.Epoch) error {
		_, err := tx.Exec(ctx, "insert into effect (partition, message_offset, worker) values ($1, $2, $3)", m.Partition.Number, m.Offset, s.Name)
		return err
	}
	return consumer.Run(ctx, source, sink, consumer.Each(apply), consumer.Options{Patience: s.Patience, Logger: quiet})
}
