package e2e_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/epochfence/epochfence/cas/pgstore"
	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/kafkasource"
	"github.com/epochfence/epochfence/consumer/natssource"
	"github.com/epochfence/epochfence/consumer/schedule"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/sinks/pgsink"
)

// takeoverEnv makes the test binary a worker process: a takeoverSpec in JSON.
const takeoverEnv = "EPOCHFENCE_E2E_TAKEOVER"

// takeoverSpec is what a worker process is told.
type takeoverSpec struct {
	Kafka, NATS, Database string // through the process's own proxies
	Topic, Group          string
	Name, Balancer        string
	Patience              time.Duration
}

// Who decides which process has which partition: a balancer of Kafka, or leases.
const (
	inRange           = "Kafka, range"
	inCooperative     = "Kafka, cooperative"
	inKIP848          = "Kafka, KIP-848"
	leaseOnNATS       = "NATS, leases there"
	leaseOnPostgreSQL = "jobs, leases in PostgreSQL"
)

// takeoverParts is the number of partitions, or of jobs.
const takeoverParts = 8

// takeoverEvery is the time between two messages of a partition, and what a step of a job takes.
const takeoverEvery = 20 * time.Millisecond

func takeoverMain(packed string) error {
	var s takeoverSpec
	if err := json.Unmarshal([]byte(packed), &s); err != nil {
		return err
	}
	go endsWithInput()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	pool, err := pgxpool.New(ctx, s.Database)
	if err != nil {
		return err
	}
	defer pool.Close()
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	sink, err := pgsink.Open(ctx, pool, pgsink.Options{Logger: log})
	if err != nil {
		return err
	}
	source, handlers, err := s.source(ctx, pool, log)
	if err != nil {
		return err
	}
	o := consumer.Options{Patience: s.Patience, Logger: log}
	if s.Balancer == leaseOnPostgreSQL {
		o.MaxBatch, o.Committers = 1, takeoverParts
	}
	return consumer.Run(ctx, source, sink, handlers, o)
}

// source returns the source, and the handlers for it. The effect of a message, or of a step of a job, is a row with
// its number, which counts from 0 in each partition.
func (s takeoverSpec) source(ctx context.Context, pool *pgxpool.Pool, log *slog.Logger) (consumer.Source, consumer.Handlers[pgsink.Tx], error) {
	effect := func(ctx context.Context, tx pgsink.Tx, partition int32, number int64) error {
		_, err := tx.Exec(ctx, "insert into effect (partition, number, worker) values ($1, $2, $3)", partition, number, s.Name)
		return err
	}
	each := consumer.Each(func(ctx context.Context, tx pgsink.Tx, m consumer.Message, _ epoch.Epoch) error {
		number, err := strconv.ParseInt(string(m.Value), 10, 64)
		if err != nil {
			return err
		}
		return effect(ctx, tx, m.Partition.Number, number)
	})
	switch s.Balancer {
	case leaseOnNATS:
		source, err := s.nats(log)
		return source, each, err
	case leaseOnPostgreSQL:
		jobs, err := s.jobs(ctx, pool, log, effect)
		if err != nil {
			return nil, consumer.Handlers[pgsink.Tx]{}, err
		}
		return jobs, jobs.Handlers(), nil
	default:
		source, err := s.kafka(log)
		return source, each, err
	}
}

func (s takeoverSpec) kafka(log *slog.Logger) (consumer.Source, error) {
	balancer := map[string]kgo.Opt{
		inRange: kgo.Balancers(kgo.RangeBalancer()), inCooperative: kgo.Balancers(kgo.CooperativeStickyBalancer()), inKIP848: kgo.ServerSideBalancer(),
	}[s.Balancer]
	return kafkasource.New(kafkasource.Options{
		Group: s.Group, Topics: []string{s.Topic}, Logger: log,
		Client: []kgo.Opt{kgo.SeedBrokers(s.Kafka), kgo.ClientID(s.Name), balancer, kgo.Dialer(func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, s.Kafka) // whatever the broker advertises
		})},
	})
}

func (s takeoverSpec) nats(log *slog.Logger) (consumer.Source, error) {
	conn, err := nats.Connect("nats://"+s.NATS, nats.MaxReconnects(-1))
	if err != nil {
		return nil, err
	}
	js, err := jetstream.New(conn)
	if err != nil {
		return nil, err
	}
	stream := natssource.Stream{Name: s.Topic}
	for n := range takeoverParts {
		stream.Filters = append(stream.Filters, fmt.Sprintf("%s.%d", s.Topic, n))
	}
	return natssource.New(natssource.Options{
		Group: s.Group, Name: s.Name, JetStream: js, Streams: []natssource.Stream{stream}, Logger: log,
	})
}

// jobs are as many as there are partitions elsewhere. They work without end, so a takeover waits for no tick.
func (s takeoverSpec) jobs(ctx context.Context, pool *pgxpool.Pool, log *slog.Logger, effect func(context.Context, pgsink.Tx, int32, int64) error) (*schedule.Schedule[pgsink.Tx], error) {
	store, err := pgstore.Open(ctx, pool, pgstore.Options{})
	if err != nil {
		return nil, err
	}
	var jobs []schedule.Job[pgsink.Tx]
	for n := range int32(takeoverParts) {
		jobs = append(jobs, schedule.Job[pgsink.Tx]{
			Name: fmt.Sprintf("%s.%d", s.Topic, n), Cron: schedule.Always,
			Step: func(ctx context.Context, tx pgsink.Tx, t schedule.Tick, _ epoch.Epoch) (done bool, err error) {
				if err := effect(ctx, tx, n, int64(t.Step)); err != nil {
					return false, err
				}
				select {
				case <-time.After(takeoverEvery):
				case <-ctx.Done():
				}
				return false, ctx.Err()
			},
		})
	}
	return schedule.New(schedule.Options{Store: store, Group: s.Group, Name: s.Name, Logger: log}, jobs...)
}
