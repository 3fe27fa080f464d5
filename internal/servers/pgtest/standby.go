package pgtest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/epochfence/epochfence/internal/waits"
)

// StartStandby starts an asynchronous standby of the server for t. To copy the data, it stops the
// server and starts it again.
func (s *Server) StartStandby(t testing.TB) *Server {
	t.Helper()
	standby, err := s.standby(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := standby.Close(); err != nil {
			t.Errorf("close the standby: %v", err)
		}
	})
	return standby
}

func (s *Server) standby(ctx context.Context) (*Server, error) {
	dir, err := serverDir("", "pgtest-standby-")
	if err != nil {
		return nil, fmt.Errorf("pgtest: %w", err)
	}
	g, err := newGuard(dir)
	if err != nil {
		_ = os.RemoveAll(dir)
		return nil, err
	}
	c := &Server{bin: s.bin, dir: dir, password: s.password, options: s.options, guard: g}
	c.options.Settings = maps.Clone(s.options.Settings)
	if err := s.Stop(Fast); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	// A setting in the file, unlike one on the command line, can be changed by Disconnect.
	follow := fmt.Sprintf("echo \"primary_conninfo = 'host=127.0.0.1 port=%d user=%s password=%s'\" >>\"$2\"/postgresql.auto.conf", s.port, superuser, s.password)
	cmd := unprivileged(exec.CommandContext(ctx, "/bin/sh", "-ec", `cp -R "$1" "$2"; touch "$2"/standby.signal; `+follow, "sh", s.data(), c.data()))
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("pgtest: copy %s: %w\n%s", filepath.Base(s.dir), err, out)
	}
	if err = errors.Join(err, s.Start(ctx)); err == nil {
		if c.port, err = freePort(); err == nil {
			err = c.Start(ctx)
		}
	}
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// Addr returns the server's address.
func (s *Server) Addr() string { return fmt.Sprintf("127.0.0.1:%d", s.port) }

// CatchUp waits until the standby has replayed everything that the primary has written.
func (s *Server) CatchUp(t testing.TB, primary *Server) {
	t.Helper()
	var lsn string
	primary.ask(t, "select pg_current_wal_lsn()::text", &lsn)
	s.until(t, "select pg_last_wal_replay_lsn() >= '"+lsn+"'::pg_lsn")
}

// Disconnect stops replication: the standby will not have later commits of its primary.
func (s *Server) Disconnect(t testing.TB) {
	t.Helper()
	var done string
	s.ask(t, "alter system set primary_conninfo = ''", nil)
	s.ask(t, "select pg_reload_conf()::text", &done)
	s.until(t, "select count(*) = 0 from pg_stat_wal_receiver")
}

// Promote makes the standby a primary.
func (s *Server) Promote(t testing.TB) {
	t.Helper()
	var done bool
	if s.ask(t, "select pg_promote(wait_seconds => 60)", &done); !done {
		t.Fatal("the standby was not promoted")
	}
}

func (s *Server) until(t testing.TB, question string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
	defer cancel()
	if !waits.Until(ctx, 20*time.Millisecond, func() (yes bool) { s.ask(t, question, &yes); return yes }) {
		t.Fatalf("not within %v: %s\n%s", startTimeout, question, s.tail())
	}
}

// ask runs one statement as the superuser. If answer is not nil, the statement returns one value.
func (s *Server) ask(t testing.TB, sql string, answer any) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), startTimeout+stopTimeout)
	defer cancel()
	conn, err := pgx.Connect(ctx, s.URL("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	if answer == nil {
		_, err = conn.Exec(ctx, sql)
	} else {
		err = conn.QueryRow(ctx, sql).Scan(answer)
	}
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}
