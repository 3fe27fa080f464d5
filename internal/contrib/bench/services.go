package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/epochfence/epochfence/internal/servers/kafkatest"
	"github.com/epochfence/epochfence/internal/servers/natstest"
	"github.com/epochfence/epochfence/internal/servers/pgtest"
	"github.com/epochfence/epochfence/internal/servers/proxy"
	"github.com/epochfence/epochfence/sinks/pgsink"
)

// services are the servers that rows need. Kafka and NATS start when a row first needs them.
type services struct {
	dir      string
	profiles string // a directory, or "" for no profiles
	postgres *pgtest.Server
	pid      int // of postgres, if processor time is measured; otherwise 0
	pool     *pgxpool.Pool
	kafka    *kafkatest.Broker
	nats     *natstest.Server
	topics   int
	played   int
}

var settings = map[string]string{
	"shared_buffers": "512MB", "max_wal_size": "8GB", "checkpoint_timeout": "1h", "autovacuum": "off",
}

// startServices starts PostgreSQL. Without fsync, and in memory if there is enough, it uses only
// the processors.
func startServices(ctx context.Context, profiles string, noFsync bool) (s *services, err error) {
	s = &services{profiles: profiles}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	if s.dir, err = os.MkdirTemp("", "bench-"); err != nil {
		return s, err
	}
	if s.postgres, err = pgtest.Launch(ctx, pgtest.Options{NoFsync: noFsync, Settings: settings}); err != nil {
		return s, err
	}
	if s.pool, err = pgxpool.New(ctx, s.postgres.URL("postgres")); err != nil {
		return s, err
	}
	if noFsync {
		if err := s.pool.QueryRow(ctx, "select split_part(pg_read_file('postmaster.pid'), E'\\n', 1)::int").Scan(&s.pid); err != nil {
			return s, err
		}
	}
	return s, pgsink.Migrate(ctx, s.pool, pgsink.Options{})
}

func (s *services) close() (err error) {
	if s.nats != nil {
		err = errors.Join(err, s.nats.Stop())
	}
	if s.kafka != nil {
		s.kafka.Kill()
	}
	if s.pool != nil {
		s.pool.Close()
	}
	if s.postgres != nil {
		err = errors.Join(err, s.postgres.Close())
	}
	return errors.Join(err, os.RemoveAll(s.dir))
}

func (s *services) prepare(ctx context.Context, r row) (j job, err error) {
	j = r.job
	j.Database, j.Postgres = s.postgres.URL("postgres"), s.pid
	s.topics++
	j.Topic = fmt.Sprintf("topic%d", s.topics)
	switch r.source {
	case "kafka":
		if s.kafka == nil {
			libs := os.Getenv("EPOCHFENCE_KAFKA_LIBS")
			if libs == "" {
				return j, errors.New("EPOCHFENCE_KAFKA_LIBS is not set: run make bench, which fetches Kafka")
			}
			dir := filepath.Join(s.dir, "kafka")
			if err := os.Mkdir(dir, 0o700); err != nil {
				return j, err
			}
			if s.kafka, err = kafkatest.New(ctx, libs, dir, kafkatest.Config{}); err != nil {
				return j, err
			}
		}
		j.Kafka = s.kafka.Addr
		if j.Rate > 0 {
			return j, nil // its variants have topics of their own
		}
		return j, produceKafka(ctx, j.Kafka, j)
	case "nats":
		if s.nats == nil {
			dir := filepath.Join(s.dir, "nats")
			if err := os.Mkdir(dir, 0o700); err != nil {
				return j, err
			}
			if s.nats, err = natstest.New(dir); err != nil {
				return j, err
			}
		}
		j.NATS = s.nats.URL()
		return j, produceNATS(ctx, j.NATS, j)
	}
	return j, nil
}

// away returns the URL of a database whose network makes each round trip longer by trip, until end
// is called.
func away(ctx context.Context, database string, trip time.Duration) (is string, end func() error, err error) {
	u, err := url.Parse(database)
	if err != nil {
		return "", nil, err
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	go relay(l, u.Host, trip)
	u.Host = l.Addr().String()
	return u.String(), l.Close, nil
}

// relay forwards connections to to, and delays the answers.
func relay(l net.Listener, to string, delay time.Duration) {
	for {
		near, err := l.Accept()
		if err != nil {
			return
		}
		far, err := (&net.Dialer{}).Dial("tcp", to)
		if err != nil {
			_ = near.Close()
			continue
		}
		late := proxy.Delay(far, delay)
		go func() {
			defer func() { _ = late.Close() }()
			_, _ = io.Copy(far, near)
		}()
		go func() {
			defer func() { _ = near.Close() }()
			_, _ = io.Copy(near, late)
		}()
	}
}
