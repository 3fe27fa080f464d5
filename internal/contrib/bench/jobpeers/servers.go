package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/epochfence/epochfence/internal/servers/freeport"
	"github.com/epochfence/epochfence/internal/servers/pgtest"
)

// servers are what the peers need. All trials share them, each with a database of its own.
type servers struct {
	postgres *pgtest.Server
	redis    string
	temporal string
	missing  string // why there is no Temporal
	last     atomic.Int64
	ends     []func()
}

func serve(ctx context.Context) (s *servers, err error) {
	s = &servers{}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	if s.postgres, err = pgtest.Launch(ctx, pgtest.Options{NoFsync: true}); err != nil {
		return s, err
	}
	s.ends = append(s.ends, func() { _ = s.postgres.Close() })
	ports, err := freeport.Take(3)
	if err != nil {
		return s, err
	}
	s.redis = fmt.Sprint("127.0.0.1:", ports[0])
	err = s.start(ctx, s.redis, "redis-server", "--bind", "127.0.0.1", "--port", fmt.Sprint(ports[0]),
		"--save", "", "--appendonly", "no", "--databases", "1000")
	if err != nil {
		return s, err
	}
	cli := os.Getenv("EPOCHFENCE_TEMPORAL")
	if cli == "" {
		s.missing = "EPOCHFENCE_TEMPORAL does not name its command line: make figures WHAT=job-peers fetches it"
		return s, nil
	}
	s.temporal = fmt.Sprint("127.0.0.1:", ports[1])
	return s, s.start(ctx, s.temporal, cli, "server", "start-dev", "--headless", "--ip", "127.0.0.1",
		"--port", fmt.Sprint(ports[1]), "--http-port", fmt.Sprint(ports[2]), "--log-level", "error")
}

func (s *servers) withoutTemporal() string { return s.missing }

func (s *servers) close() {
	for _, end := range s.ends {
		end()
	}
}

// start starts a server and waits until something listens at its address.
func (s *servers) start(ctx context.Context, addr, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	said := &tail{}
	cmd.Stdout, cmd.Stderr = said, said
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", name, err)
	}
	exited := make(chan struct{})
	go func() {
		_ = cmd.Wait()
		close(exited)
	}()
	s.ends = append(s.ends, func() {
		_ = cmd.Process.Kill()
		<-exited
	})
	deadline := time.After(time.Minute)
	for {
		conn, err := net.Dial("tcp", addr)
		if err == nil {
			return conn.Close()
		}
		select {
		case <-exited:
			return fmt.Errorf("%s ended:\n%s", name, strings.Join(said.lines(), "\n"))
		case <-deadline:
			return fmt.Errorf("%s does not listen: %w", name, err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// stage is the ground of one trial.
func (s *servers) stage(ctx context.Context, sh *show) (c config, end func(), err error) {
	n := s.last.Add(1)
	name := fmt.Sprint("trial_", n)
	if err := execute(ctx, s.postgres.URL("postgres"), "create database "+name); err != nil {
		return c, nil, err
	}
	api := httptest.NewServer(newLeaseAPI())
	c = config{
		Peer: sh.name, Form: sh.form, Database: s.postgres.URL(name), Redis: s.redis, RedisDB: int(n), Leases: api.URL,
		Temporal: s.temporal, ID: name, Freeze: sh.story.freeze, Long: sh.story.long,
	}
	if err := execute(ctx, c.Database, schema); err != nil {
		api.Close()
		return c, nil, err
	}
	return c, api.Close, nil
}

func execute(ctx context.Context, database, sql string) error {
	conn, err := pgx.Connect(ctx, database)
	if err != nil {
		return err
	}
	_, err = conn.Exec(ctx, sql)
	return errors.Join(err, conn.Close(ctx))
}
