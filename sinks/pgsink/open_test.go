package pgsink_test

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/servers/pgtest"
	"github.com/epochfence/epochfence/sinks/pgsink"
)

func runtimeParam(name, value string) func(*pgxpool.Config) {
	return func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams[name] = value }
}

func changed(t *testing.T, raw string, change func(*url.URL)) string {
	t.Helper()
	u, err := url.Parse(raw)
	if err != nil {
		t.Fatal(err)
	}
	change(u)
	return u.String()
}

func TestOpenSaysWhyTheServerCannotBeUsed(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	silent, err := net.Listen("tcp", "127.0.0.1:0") // accepts in the kernel, and says nothing
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = silent.Close() }()
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = closed.Close()
	r.sql("create database " + r.db.Name + "_latin encoding 'LATIN1' template template0")
	t.Cleanup(func() { _, _ = r.admin.Exec(context.Background(), "drop database "+r.db.Name+"_latin with (force)") })

	for _, c := range []struct {
		what, url string
		waits     time.Duration // what the caller is ready to wait
		mentions  string
	}{
		{"nobody listens", changed(t, r.appURL, func(u *url.URL) { u.Host = closed.Addr().String() }), time.Second, closed.Addr().String() + " was not reached within 1s; does it run"},
		{"nobody answers", changed(t, r.appURL, func(u *url.URL) { u.Host = silent.Addr().String() }), 5 * time.Second, "no answer within 500ms"},
		{"wrong password", changed(t, r.appURL, func(u *url.URL) { u.User = url.UserPassword(r.role, "guess") }), time.Hour, "refused the credentials"},
		{"no such role", changed(t, r.appURL, func(u *url.URL) { u.User = url.UserPassword("nobody", "guess") }), time.Hour, "refused the credentials"},
		{"no such database", changed(t, r.appURL, func(u *url.URL) { u.Path = "/nowhere" }), time.Hour, `database "nowhere" does not exist`},
		{"another encoding", changed(t, r.db.URL, func(u *url.URL) { u.Path += "_latin" }), time.Hour, "LATIN1; want UTF8"},
	} {
		began := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		_, err := pgsink.Open(ctx, newPool(t, c.url), pgsink.Options{CallTimeout: 500 * time.Millisecond, StartTimeout: c.waits})
		if err == nil || !strings.Contains(err.Error(), c.mentions) || strings.Contains(err.Error(), "guess") {
			t.Errorf("%s: err = %v; want one with %q in it", c.what, err, c.mentions)
		}
		if ctx.Err() != nil {
			t.Errorf("%s: not said within %v", c.what, time.Since(began))
		}
		cancel()
	}
}

// lines gets each line that is logged.
type lines chan string

func (l lines) Write(p []byte) (int, error) {
	l <- string(p)
	return len(p), nil
}

func TestAServerThatIsNotUpYetIsWaitedForAndNamedInTheLog(t *testing.T) {
	t.Parallel()
	server := pgtest.StartServer(t, pgtest.Options{})
	db := server.Database(t)
	if err := pgsink.Migrate(t.Context(), newPool(t, db.URL), pgsink.Options{}); err != nil {
		t.Fatal(err)
	}
	if err := server.Stop(pgtest.Immediate); err != nil {
		t.Fatal(err)
	}
	said, opened := make(lines, 100), make(chan error, 2)
	go func() {
		_, err := pgsink.Open(t.Context(), newPool(t, db.URL), pgsink.Options{Logger: slog.New(slog.NewTextHandler(said, nil))})
		opened <- err
	}()
	select {
	case line := <-said:
		if at, err := url.Parse(db.URL); err != nil || !strings.Contains(line, "PostgreSQL at "+at.Host) || !strings.Contains(line, "refused") {
			t.Errorf("it does not say what is waited for, and why: %s (%v)", line, err)
		}
	case err := <-opened:
		t.Fatalf("Open did not wait: %v", err)
	}
	go func() { opened <- pgsink.Migrate(t.Context(), newPool(t, db.URL), pgsink.Options{}) }()
	if err := server.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := <-opened; err != nil {
			t.Error(err)
		}
	}
}

func TestAWaitForTheServerEndsWithItsContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	_, err := pgsink.Open(ctx, newPool(t, "postgres://127.0.0.1:1/none"), pgsink.Options{StartTimeout: time.Hour, Logger: slog.New(slog.DiscardHandler)})
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "refused") {
		t.Errorf("err = %v", err)
	}
}

func TestAReadOnlySessionIsNamed(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	w := r.open()
	seed(t, w, orders)
	f := claim(t, w, orders, 5)
	s := r.openOn(newPool(t, r.appURL, runtimeParam("default_transaction_read_only", "on")))
	if _, err := tryClaim(t.Context(), s, orders, 6); err == nil || !strings.Contains(err.Error(), "read-only") {
		t.Errorf("claim: err = %v", err)
	}
	nothing := func(context.Context, pgsink.Tx) error { return nil }
	if err := s.Commit(t.Context(), advance(f, 1), epoch.TxOptions{}, nothing); err == nil || !strings.Contains(err.Error(), "read-only") {
		t.Errorf("commit: err = %v", err)
	}
}

func TestOptionsOutOfRangeAreRefused(t *testing.T) {
	t.Parallel()
	pool := newPool(t, "postgres://127.0.0.1:1/none") // never used
	for name, o := range map[string]pgsink.Options{
		"StatementTimeout": {StatementTimeout: -1},
		"IdleTimeout":      {IdleTimeout: 25 * time.Hour},
		"LockTimeout":      {LockTimeout: time.Microsecond},
		"ClaimTimeout":     {ClaimTimeout: -time.Hour},
		"CallTimeout":      {CallTimeout: 1 << 62},
		"StartTimeout":     {StartTimeout: -1},
		"Isolation":        {Isolation: "chaos; drop table fence"},
	} {
		if _, err := pgsink.Open(t.Context(), pool, o); err == nil || !strings.Contains(err.Error(), "Options."+name) {
			t.Errorf("%s: err = %v", name, err)
		}
	}
}

func TestNamesThatTextCannotHoldAreRefusedByNameOfTheField(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := r.open()
	seed(t, s, orders)
	f := claim(t, s, orders, 5)
	nothing := func(context.Context, pgsink.Tx) error { return nil }
	for _, bad := range []string{"nul\x00", "not utf-8 \xff"} {
		group, topic, log, source, owner := lease(orders, 6), lease(orders, 6), lease(orders, 6), lease(orders, 6), lease(orders, 6)
		group.Partition.Group, topic.Partition.Topic, log.Log, source.Source, owner.Owner = bad, bad, bad, bad, bad
		for word, l := range map[string]epoch.Lease{"group": group, "topic": topic, "log id": log, "lease source": source, "owner": owner} {
			_, err := s.Claim(t.Context(), f, epoch.NewClaim(l))
			if err == nil || !strings.Contains(err.Error(), word) {
				t.Errorf("claim with %s %q: err = %v", word, bad, err)
			}
		}
		if _, err := epoch.FenceOf(t.Context(), s, epoch.Partition{Group: bad}); err == nil || errors.Is(err, epoch.ErrMissing) {
			t.Errorf("read: err = %v", err)
		}
		as := advance(f, 1)
		as[0].Partition.Topic = bad
		if err := s.Commit(t.Context(), as, epoch.TxOptions{}, nothing); err == nil || errors.Is(err, epoch.ErrInDoubt) {
			t.Errorf("commit: err = %v", err)
		}
	}
	long := epoch.Partition{Group: strings.Repeat("g", 3000), Topic: "orders"}
	if err := s.Seed(t.Context(), []epoch.Start{{Origin: origin(long)}}); err == nil || !strings.Contains(err.Error(), "limit") {
		t.Errorf("seed of a group of 3000 bytes: err = %v", err)
	}
}

func TestAnUnreachableServerIsDoubtToACommitAndBlamesNoHandler(t *testing.T) {
	t.Parallel()
	server := pgtest.StartServer(t, pgtest.Options{})
	db := server.Database(t)
	pool := newPool(t, db.URL)
	if err := pgsink.Migrate(t.Context(), pool, pgsink.Options{}); err != nil {
		t.Fatal(err)
	}
	s, err := pgsink.Open(t.Context(), pool, pgsink.Options{CallTimeout: 20 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	seed(t, s, orders)
	f := claim(t, s, orders, 5)
	if err := server.Stop(pgtest.Immediate); err != nil {
		t.Fatal(err)
	}
	proven(s, f)
	want(t, s.Commit(t.Context(), advance(f, 1), epoch.TxOptions{}, func(context.Context, pgsink.Tx) error { return nil }), epoch.ErrInDoubt)
	pgsink.Forget(s)
	called := false
	err = s.Commit(t.Context(), advance(f, 1), epoch.TxOptions{}, func(context.Context, pgsink.Tx) error { called = true; return nil })
	want(t, err, epoch.ErrInDoubt)
	if called {
		t.Error("the handler was called without a transaction")
	}
	want(t, s.Queued().Commit(t.Context(), advance(f, 1), epoch.TxOptions{}, queueing("x", "1")), epoch.ErrInDoubt)
	if _, err := epoch.FenceOf(t.Context(), s, orders); err == nil || errors.Is(err, epoch.ErrMissing) {
		t.Errorf("read: err = %v", err)
	}
	// What was committed is there when the server is, and the sink continues
	// by itself, whatever became of the pool's connections.
	if err := server.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	again := claim(t, s, orders, 6)
	if again.Epoch != 6 || again.Next != 0 {
		t.Fatalf("the fence is %+v", again)
	}
	if err := s.Commit(t.Context(), advance(again, 1), epoch.TxOptions{}, func(context.Context, pgsink.Tx) error { return nil }); err != nil {
		t.Fatal(err)
	}
}

func TestConnectionsThatDiedInThePoolAreReplacedUnseen(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	pool := r.pool()
	s := r.openOn(pool)
	seed(t, s, orders)
	f := claim(t, s, orders, 5)
	kill := func() {
		t.Helper()
		for _, c := range pool.AcquireAllIdle(t.Context()) {
			r.sql("select pg_terminate_backend(pid, 5000) from pg_stat_activity where pid <> pg_backend_pid() and usename = '" + r.role + "'")
			c.Release()
		}
	}
	kill()
	if _, err := epoch.FenceOf(t.Context(), s, orders); err != nil {
		t.Errorf("read: %v", err)
	}
	kill()
	if err := s.Seed(t.Context(), []epoch.Start{{Origin: origin(orders)}}); err != nil {
		t.Errorf("seed: %v", err)
	}
	kill()
	calls := 0
	err := s.Commit(t.Context(), advance(f, 1), epoch.TxOptions{}, func(ctx context.Context, tx pgsink.Tx) error {
		calls++
		return put(ctx, tx, "form 1", "1")
	})
	if err != nil || calls != 1 {
		t.Errorf("commit: %v after %d calls", err, calls)
	}
	f.Next = 1
	kill()
	if err := s.Queued().Commit(t.Context(), advance(f, 1), epoch.TxOptions{}, queueing("form 2", "1")); err != nil {
		t.Errorf("queued commit: %v", err)
	}
	kill()
	claim(t, s, orders, 6)
	r.wantList("form 1", "1")
	r.wantList("form 2", "1")
}
