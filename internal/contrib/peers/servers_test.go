package peers

import (
	"context"
	"errors"
	"fmt"
	"net/http/httptest"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/epochfence/epochfence/internal/servers/etcdtest"
	"github.com/epochfence/epochfence/internal/servers/freeport"
	"github.com/epochfence/epochfence/internal/servers/kafkatest"
	"github.com/epochfence/epochfence/internal/servers/pgtest"
	"github.com/epochfence/epochfence/internal/servers/servertest"
)

// servers are what the peers need. All trials share them, each with a database of its own.
type servers struct {
	postgres *pgtest.Server
	redis    string
	etcd     string
	kafka    string
	libs     string // of Kafka
	temporal string
	missing  string // why there is no Temporal
	java     javaPeer
	cron     *pgtest.Server
	cronless string // why there is no pg_cron
	last     atomic.Int64
}

// serve starts the servers that some rows need.
func serve(t *testing.T, some []*row) *servers {
	t.Helper()
	s := &servers{}
	s.postgres = pgtest.StartServer(t, pgtest.Options{NoFsync: true, Settings: map[string]string{"max_connections": "1000"}})
	s.redis = servertest.Start(t, func(r *servertest.Server) *exec.Cmd {
		return exec.Command("redis-server", "--bind", "127.0.0.1", "--port", r.Port(), "--save", "", "--appendonly", "no", "--databases", "10000")
	}).Address
	if wants(some, "etcd/") {
		s.etcd = etcdtest.Start(t).Address
	}
	if slices.ContainsFunc(some, func(r *row) bool { return r.consumer }) {
		s.libs = kafkatest.Libs(t)
		s.kafka = kafkatest.Start(t, kafkatest.Config{}).Addr
	}
	if wants(some, "pg_cron") {
		s.startPgCron(t)
	}
	if wants(some, "java") {
		s.java = compileJava(t, s.libs)
	}
	cli := os.Getenv("EPOCHFENCE_TEMPORAL")
	if cli == "" {
		s.missing = "EPOCHFENCE_TEMPORAL does not name its command line: make peers fetches it"
	} else if wants(some, "temporal/") {
		web, err := freeport.Take(1)
		if err != nil {
			t.Fatal(err)
		}
		s.temporal = servertest.Start(t, func(r *servertest.Server) *exec.Cmd {
			return exec.Command(cli, "server", "start-dev", "--headless", "--ip", "127.0.0.1", "--port", r.Port(),
				"--http-port", strconv.Itoa(web[0]), "--log-level", "error")
		}).Address
	}
	return s
}

func wants(some []*row, prefix string) bool {
	return slices.ContainsFunc(some, func(r *row) bool { return strings.HasPrefix(r.id, prefix) })
}

func (s *servers) postgresVersion(t *testing.T) string {
	return answer(t, s.postgres.URL("postgres"), `select split_part(current_setting('server_version'), ' ', 1)`)
}

// answer is that of a question of one row.
func answer(t *testing.T, database, sql string) (is string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), database)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(t.Context())) }()
	if err := conn.QueryRow(t.Context(), sql).Scan(&is); err != nil {
		t.Fatal(err)
	}
	return is
}

func (s *servers) withoutTemporal() string { return s.missing }

// stage is the ground of one trial.
func (s *servers) stage(ctx context.Context, r *row, k kind) (*stage, func(), error) {
	n := s.last.Add(1)
	name := fmt.Sprint("trial_", n)
	if err := execute(ctx, s.postgres.URL("postgres"), "create database "+name); err != nil {
		return nil, nil, err
	}
	api := httptest.NewServer(newLeaseAPI())
	st := &stage{row: r, javaPeer: s.java, config: config{
		Row: r.id, ID: name, Freeze: k.freeze, Database: s.postgres.URL(name), Redis: s.redis, RedisDB: int(n), Leases: api.URL,
		Temporal: s.temporal, Etcd: s.etcd, Kafka: s.kafka,
	}}
	end := func() {
		api.Close()
		ctx := context.WithoutCancel(ctx)
		if st.db != nil {
			_ = st.db.Close(ctx)
		}
		_ = execute(ctx, s.postgres.URL("postgres"), "drop database "+name+" with (force)") // to save space; it ends with the server
	}
	err := execute(ctx, st.Database, schema)
	if err == nil {
		st.db, err = pgx.Connect(ctx, st.Database)
	}
	if err != nil {
		end()
		return nil, nil, err
	}
	return st, end, nil
}

func execute(ctx context.Context, database, sql string) error {
	conn, err := pgx.Connect(ctx, database)
	if err != nil {
		return err
	}
	_, err = conn.Exec(ctx, sql)
	return errors.Join(err, conn.Close(ctx))
}
