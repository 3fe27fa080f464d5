package pgtest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"
)

// EnvBouncer is the environment variable that makes a missing PgBouncer a failure instead of a skip
// if CI=true.
const EnvBouncer = "EPOCHFENCE_PGBOUNCER"

// Bouncer is a PgBouncer in transaction pooling, in front of one database.
type Bouncer struct {
	// URL connects the role through PgBouncer.
	URL string
}

// bouncerConfig has few connections for many clients. Its ignored startup parameters are set by the
// tests' pools, and PgBouncer does not track them.
const bouncerConfig = `[databases]
%[1]s = host=%[2]s port=%[3]s dbname=%[1]s user=%[4]s password=%[5]s
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = %[6]d
unix_socket_dir =
auth_type = trust
auth_file = %[7]s
pool_mode = transaction
default_pool_size = 10
max_client_conn = 500
ignore_startup_parameters = extra_float_digits,synchronous_commit
server_idle_timeout = 5
logfile =
`

// StartBouncer starts a PgBouncer in front of the database and role of a URL. It skips the test if
// none is installed.
func StartBouncer(t testing.TB, database string) Bouncer {
	t.Helper()
	bin, err := exec.LookPath("pgbouncer")
	if err != nil {
		if os.Getenv("CI") == "true" && os.Getenv(EnvBouncer) != "" {
			t.Fatalf("PgBouncer is absent, CI=true and %s is set: %v", EnvBouncer, err)
		}
		t.Skipf("no PgBouncer: %v", err)
	}
	b, stop, err := startBouncer(t.Context(), bin, database)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := stop(); err != nil {
			t.Errorf("stop PgBouncer: %v", err)
		}
	})
	return b
}

func startBouncer(ctx context.Context, bin, database string) (b Bouncer, stop func() error, err error) {
	u, err := url.Parse(database)
	if err != nil {
		return b, nil, errors.New("pgtest: the database's URL is none")
	}
	port, err := freePort()
	if err != nil {
		return b, nil, err
	}
	dir, err := serverDir("", "pgtest-bouncer-")
	if err != nil {
		return b, nil, err
	}
	g, err := newGuard(dir)
	if err != nil {
		return b, nil, err
	}
	var p *process
	stop = func() error {
		if p != nil {
			select {
			case <-p.exited:
				said, _ := os.ReadFile(filepath.Join(dir, "log"))
				return errors.Join(fmt.Errorf("pgtest: PgBouncer ended by itself :\n%s", lastLines(said)), g.close())
			default:
			}
			_ = p.signal(sigImmediate) // PgBouncer too shuts down immediately on this signal
			select {
			case <-p.exited:
			case <-time.After(stopTimeout):
				_ = p.signal(os.Kill)
			}
		}
		return g.close()
	}
	password, _ := u.User.Password()
	users, config := filepath.Join(dir, "users"), filepath.Join(dir, "pgbouncer.ini")
	text := fmt.Sprintf(bouncerConfig, u.Path[1:], u.Hostname(), u.Port(), u.User.Username(), password, port, users)
	err = errors.Join(
		os.WriteFile(users, []byte(strconv.Quote(u.User.Username())+" "+strconv.Quote(password)+"\n"), 0o644),
		os.WriteFile(config, []byte(text), 0o644)) // only the server's user can open the directory
	if err != nil {
		return b, nil, errors.Join(err, stop())
	}
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		return b, nil, errors.Join(err, stop())
	}
	defer func() { _ = log.Close() }()
	if p, err = g.start(log, bin, config); err != nil {
		return b, nil, errors.Join(err, stop())
	}
	u.Host = net.JoinHostPort("127.0.0.1", strconv.Itoa(int(port)))
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	said := func() []byte { text, _ := os.ReadFile(log.Name()); return text }
	if err := p.await(ctx, "PgBouncer", u.String(), said); err != nil {
		return b, nil, errors.Join(err, stop())
	}
	return Bouncer{URL: u.String()}, stop, nil
}
