package pgsink_test

import (
	"context"
	"log/slog"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/servers/pgtest"
	"github.com/epochfence/epochfence/internal/servers/tlstest"
	"github.com/epochfence/epochfence/sinks/pgsink"
)

// A server as it is in production: TLS that is verified, and the application's role,
// which may execute functions and nothing else. What is wrong with the client's side of it
// is said long before StartTimeout.
func TestASecuredServerTakesCommitsOfTheApplicationsRole(t *testing.T) {
	t.Parallel()
	authority := tlstest.NewAuthority(t)
	good, expired := authority.Server(), authority.Expired()
	server := pgtest.StartServer(t, pgtest.Options{NoFsync: true, TLS: &good})
	lapsed := pgtest.StartServer(t, pgtest.Options{NoFsync: true, TLS: &expired})
	as := func(s *pgtest.Server, password string, from *tlstest.Authority) string {
		t.Helper()
		u, err := url.Parse(s.URL("postgres"))
		if err != nil {
			t.Fatal(err)
		}
		u.User = url.UserPassword("app", password)
		u.RawQuery = url.Values{"sslmode": {"verify-full"}, "sslrootcert": {from.File}}.Encode()
		return u.String()
	}

	admin := newPool(t, server.URL("postgres"))
	for _, sql := range []string{`create role app login password 'right'`, `create table effect (id text)`, `grant insert on effect to app`} {
		if _, err := admin.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	if err := pgsink.Migrate(t.Context(), admin, pgsink.Options{}); err != nil {
		t.Fatal(err)
	}
	if err := pgsink.Grant(t.Context(), admin, "app", pgsink.Options{}); err != nil {
		t.Fatal(err)
	}
	sink, err := pgsink.Open(t.Context(), newPool(t, as(server, "right", authority)), pgsink.Options{})
	if err != nil {
		t.Fatal(err)
	}
	seed(t, sink, orders)
	f := claim(t, sink, orders, 1)
	err = sink.Commit(t.Context(), advance(f, 1), epoch.TxOptions{}, func(ctx context.Context, tx pgsink.Tx) error {
		var tls bool
		if err := tx.QueryRow(ctx, `select ssl from pg_stat_ssl where pid = pg_backend_pid()`).Scan(&tls); err != nil || !tls {
			t.Errorf("TLS: %v, %v", tls, err)
		}
		_, err := tx.Exec(ctx, `insert into effect values ('a')`)
		return err
	})
	if err != nil {
		t.Error(err)
	}

	for name, c := range map[string]struct{ url, say string }{
		"wrong password":      {as(server, "wrong", authority), "refused the credentials"},
		"unknown authority":   {as(server, "right", tlstest.NewAuthority(t)), "certificate authority"},
		"expired certificate": {as(lapsed, "right", authority), "expired"},
	} {
		pool := newPool(t, c.url)
		began := time.Now()
		_, err := pgsink.Open(t.Context(), pool, pgsink.Options{Logger: slog.New(slog.DiscardHandler)})
		took := time.Since(began)
		if err == nil || !strings.HasPrefix(err.Error(), "pgsink: ") || !strings.Contains(err.Error(), c.say) || took > 15*time.Second {
			t.Errorf("%s: %v after %v, want one that says %q long before 30 s", name, err, took, c.say)
		}
		t.Logf("%s: %v: %v", name, took.Round(time.Millisecond), err)
	}
}
