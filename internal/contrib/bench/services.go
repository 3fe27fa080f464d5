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

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/epochfence/epochfence/internal/servers/kafkatest"
	"github.com/epochfence/epochfence/internal/servers/natstest"
	"github.com/epochfence/epochfence/internal/servers/pgtest"
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
		if r.hot {
			hot := j
			hot.Topic, hot.Hot = hotTopic(j), true
			if err := produceKafka(ctx, j.Kafka, hot); err != nil {
				return j, err
			}
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

// condition prepares the database of a row. It returns the URL for the variants, valid until end is
// called.
type condition func(ctx context.Context, s *services, plain string) (is string, end func() error, err error)

func slowDisk(_ context.Context, _ *services, plain string) (string, func() error, error) {
	return plain + "&commit_delay=5000&commit_siblings=0", func() error { return nil }, nil
}

// oldSnapshot holds a snapshot open, so that vacuum removes no row version.
func oldSnapshot(ctx context.Context, _ *services, plain string) (string, func() error, error) {
	conn, err := pgx.Connect(ctx, plain)
	if err != nil {
		return "", nil, err
	}
	if _, err := conn.Exec(ctx, "begin isolation level repeatable read; select txid_current()"); err != nil {
		return "", nil, errors.Join(err, conn.Close(ctx))
	}
	return plain, func() error { return conn.Close(context.WithoutCancel(ctx)) }, nil
}

// executeAlone connects as a role that may call the sink's functions but not read its tables.
func executeAlone(ctx context.Context, s *services, plain string) (string, func() error, error) {
	u, err := url.Parse(plain)
	if err != nil {
		return "", nil, err
	}
	const role, password = "bench_app", "bench_app"
	if _, err := s.pool.Exec(ctx, "create role "+role+" login password '"+password+"'"); err != nil {
		return "", nil, err
	}
	if err := pgsink.Grant(ctx, s.pool, role, pgsink.Options{}); err != nil {
		return "", nil, err
	}
	u.User = url.UserPassword(role, password)
	return u.String(), func() error {
		_, err := s.pool.Exec(context.WithoutCancel(ctx), "drop owned by "+role+"; drop role "+role)
		return err
	}, nil
}

// away adds a network that makes each round trip longer by trip.
func away(trip time.Duration) condition {
	return func(ctx context.Context, _ *services, plain string) (string, func() error, error) {
		u, err := url.Parse(plain)
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
}

// relay forwards connections to to, and delays what clients send. It does not delay the answers:
// the way there has the whole delay of a round trip, because a sleep of less than a millisecond
// lasts about one.
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
		go late(far, near, delay)
		go func() {
			defer func() { _ = near.Close() }()
			_, _ = io.Copy(near, far)
		}()
	}
}

// late copies everything to another connection, and writes each piece delay after reading it.
func late(to io.WriteCloser, from io.Reader, delay time.Duration) {
	type piece struct {
		data []byte
		due  time.Time
	}
	under := make(chan piece, 1024)
	go func() {
		defer func() { _ = to.Close() }()
		for p := range under {
			time.Sleep(time.Until(p.due))
			if _, err := to.Write(p.data); err != nil {
				break
			}
		}
		for range under { // reads must not wait
		}
	}()
	defer close(under)
	for {
		buf := make([]byte, 64<<10)
		n, err := from.Read(buf)
		if n > 0 {
			under <- piece{buf[:n], time.Now().Add(delay)}
		}
		if err != nil {
			return
		}
	}
}
