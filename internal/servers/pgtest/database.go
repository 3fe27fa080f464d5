package pgtest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// Env is the environment variable that may hold the URL of a running server. Its value "embedded"
// asks for fetched binaries of the newest version, even if others are installed; "embedded:17" and
// "embedded:14" ask for these versions.
const Env = "EPOCHFENCE_TEST_POSTGRES"

const cleanupTimeout = 30 * time.Second

// Database is an empty database of one test.
type Database struct {
	// URL connects the superuser.
	URL string

	// Name is random.
	Name string

	serverURL string
	mu        sync.Mutex
	roles     []string
}

// shared is the server of this test binary. It ends with the process.
var shared = sync.OnceValues(func() (string, error) {
	given := os.Getenv(Env)
	if _, fetch := fetchable[given]; given != "" && !fetch {
		if u, err := url.Parse(given); err != nil || u.Host == "" {
			return "", fmt.Errorf("pgtest: %s is neither a URL nor one of %q", Env, slices.Sorted(maps.Keys(fetchable))) // err would show the password
		}
		return given, nil
	}
	s, err := Launch(context.Background(), Options{NoFsync: true, Settings: map[string]string{"autovacuum": "off"}}) // of many short databases
	if err != nil {
		return "", err
	}
	return s.URL("postgres"), nil
})

// Start returns a database of t's own on the shared server. Without PostgreSQL it skips t, or fails
// t if CI=true.
func Start(t testing.TB) *Database {
	t.Helper()
	notInShort(t)
	server, err := shared()
	if err != nil {
		absent(t, err)
	}
	return create(t, server)
}

// StartServer starts a server of t's own, which t may stop, whatever the environment says. Like
// [Start] it may skip t.
func StartServer(t testing.TB, o Options) *Server {
	t.Helper()
	notInShort(t)
	s, err := Launch(t.Context(), o)
	if err != nil {
		absent(t, err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("close the server: %v", err)
		}
	})
	return s
}

func notInShort(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("-short: PostgreSQL is not started")
	}
}

func absent(t testing.TB, err error) {
	t.Helper()
	if os.Getenv("CI") == "true" {
		t.Fatalf("PostgreSQL is absent and CI=true: %v", err)
	}
	t.Skipf("no PostgreSQL: give the URL of one in %s, or install it: %v", Env, err)
}

// Database creates a database on the server. It is dropped when the test ends if the server still
// runs.
func (s *Server) Database(t testing.TB) *Database {
	t.Helper()
	return create(t, s.URL("postgres"))
}

func create(t testing.TB, server string) *Database {
	t.Helper()
	d := &Database{Name: randomName(), serverURL: server}
	if err := d.admin(t.Context(), "create database "+d.Name); err != nil {
		t.Fatalf("create a database: %v", err)
	}
	d.URL = d.url(nil)
	t.Cleanup(func() {
		if err := d.drop(); err != nil {
			t.Errorf("drop the database: %v", err)
		}
	})
	return d
}

func (d *Database) drop() error {
	ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
	defer cancel()
	d.mu.Lock()
	defer d.mu.Unlock()
	statements := []string{"drop database if exists " + d.Name + " with (force)"}
	for _, role := range d.roles {
		statements = append(statements, "drop role if exists "+role)
	}
	err := d.admin(ctx, statements...)
	if _, ok := errors.AsType[*unreachableError](err); ok {
		return nil // the test has stopped the server; its data is deleted with it
	}
	return err
}

func (d *Database) admin(ctx context.Context, statements ...string) error {
	conn, err := pgx.Connect(ctx, d.serverURL)
	if err != nil {
		return &unreachableError{err}
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	for _, sql := range statements {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return fmt.Errorf("%s: %w", sql, err)
		}
	}
	return nil
}

type unreachableError struct{ err error }

func (e *unreachableError) Error() string { return e.err.Error() }
func (e *unreachableError) Unwrap() error { return e.err }

func (d *Database) url(user *url.Userinfo) string {
	u, err := url.Parse(d.serverURL)
	if err != nil {
		return d.serverURL // shared has checked it
	}
	u.Path = "/" + d.Name
	if user != nil {
		u.User = user
	}
	return u.String()
}

// Odd sets, for connections that are opened from now on, what changes how values travel as text.
func (d *Database) Odd(t testing.TB) {
	t.Helper()
	for _, set := range []string{
		"datestyle = 'German'", "bytea_output = 'escape'", "array_nulls = off", "intervalstyle = 'sql_standard'",
		"extra_float_digits = -15", "timezone = 'Asia/Kathmandu'", "xmlbinary = 'hex'", "quote_all_identifiers = on",
	} {
		if err := d.admin(t.Context(), "alter database "+d.Name+" set "+set); err != nil {
			t.Fatal(err)
		}
	}
}

// Superuser opens a connection as the superuser. It closes when the test ends.
func (d *Database) Superuser(t testing.TB) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), d.URL)
	if err != nil {
		t.Fatalf("connect as the superuser: %v", err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
		defer cancel()
		_ = conn.Close(ctx)
	})
	return conn
}

// Role creates a role with the login privilege only. It returns its name and a URL that connects
// the role to the database. The role is dropped with the database.
func (d *Database) Role(t testing.TB) (name, roleURL string) {
	t.Helper()
	name, password := randomName(), randomName()
	if err := d.admin(t.Context(), "create role "+name+" login password '"+password+"'"); err != nil {
		t.Fatalf("create a role: %v", err)
	}
	d.mu.Lock()
	d.roles = append(d.roles, name)
	d.mu.Unlock()
	return name, d.url(url.UserPassword(name, password))
}
