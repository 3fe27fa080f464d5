package pgtest

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/epochfence/epochfence/internal/servers/freeport"
	"github.com/epochfence/epochfence/internal/servers/tlstest"
	"github.com/epochfence/epochfence/internal/waits"
)

const (
	superuser    = "postgres"
	startTimeout = 60 * time.Second
	stopTimeout  = 30 * time.Second
)

// Options configure a server. The zero Options are PostgreSQL's defaults with little memory.
type Options struct {
	// NoFsync trades durability for speed: a crash of the machine, but not of the server, may lose
	// committed data. The data is in memory if there is enough.
	NoFsync bool

	// TLS is the server's certificate. Clients may still connect without TLS.
	TLS *tlstest.Certificate

	// Settings are more parameters, as in postgresql.conf.
	Settings map[string]string
}

// Server is a PostgreSQL server that pgtest has started. Its methods are not safe for concurrent
// use, except URL.
type Server struct {
	bin, dir, password string
	port               uint32
	options            Options

	guard     *guard
	process   *process
	closeOnce sync.Once
	closeErr  error
}

// Launch initialises and starts a server. It ends with Close, or with this process.
func Launch(ctx context.Context, o Options) (*Server, error) {
	bin, err := binaries()
	if err != nil {
		return nil, err
	}
	parent := ""
	if o.NoFsync {
		parent = memoryDir()
	}
	dir, err := serverDir(parent, "pgtest-")
	if err != nil {
		return nil, fmt.Errorf("pgtest: %w", err)
	}
	g, err := newGuard(dir)
	if err != nil {
		_ = os.RemoveAll(dir)
		return nil, err
	}
	s := &Server{bin: bin, dir: dir, password: randomName(), options: o, guard: g}
	if err := s.initialise(ctx); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	// If another process takes the port before the server binds it, the server exits at once.
	// Launch then chooses another port.
	for range 5 {
		if s.port, err = freePort(); err != nil {
			break
		}
		if err = s.Start(ctx); err == nil || ctx.Err() != nil {
			break
		}
	}
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

func (s *Server) initialise(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	pwfile := filepath.Join(s.dir, "password")
	if err := os.WriteFile(pwfile, []byte(s.password), 0o644); err != nil { // only the server's user can open the directory
		return fmt.Errorf("pgtest: %w", err)
	}
	defer func() { _ = os.Remove(pwfile) }()
	cmd := unprivileged(exec.CommandContext(ctx, filepath.Join(s.bin, "initdb"),
		"--pgdata", s.data(), "--username", superuser, "--pwfile", pwfile,
		"--auth", "md5", // scram-sha-256 costs a connection more than a test's whole work
		"--encoding", "UTF8", "--locale", "C", "--no-sync"))
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("pgtest: %s: %w\n%s", cmd.Path, err, out)
	}
	if s.options.TLS == nil {
		return nil
	}
	return errors.Join(s.write("server.crt", s.options.TLS.Cert), s.write("server.key", s.options.TLS.Key))
}

func (s *Server) write(name string, data []byte) error {
	name = filepath.Join(s.data(), name)
	if err := os.WriteFile(name, data, 0o600); err != nil {
		return fmt.Errorf("pgtest: %w", err)
	}
	return ownByServer(name)
}

func (s *Server) data() string { return filepath.Join(s.dir, "data") }
func (s *Server) log() string  { return filepath.Join(s.dir, "log") }

// Start starts the server again after Stop, on the same port, and returns when it accepts
// connections.
func (s *Server) Start(ctx context.Context) error {
	if s.process != nil {
		return errors.New("pgtest: start: the server is running")
	}
	settings := map[string]string{
		"listen_addresses":        "127.0.0.1",
		"port":                    strconv.Itoa(int(s.port)),
		"unix_socket_directories": "",
		"shared_buffers":          "32MB",
		"max_connections":         "500",
	}
	if s.options.NoFsync {
		settings["fsync"] = "off"
	}
	if s.options.TLS != nil {
		settings["ssl"] = "on"
	}
	maps.Copy(settings, s.options.Settings)
	args := []string{"-D", s.data()}
	for k, v := range settings {
		args = append(args, "-c", k+"="+v)
	}

	log, err := os.OpenFile(s.log(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("pgtest: %w", err)
	}
	defer func() { _ = log.Close() }()
	if s.process, err = s.guard.start(log, filepath.Join(s.bin, "postgres"), args...); err != nil {
		return fmt.Errorf("pgtest: start PostgreSQL: %w", err)
	}
	if err := s.await(ctx); err != nil {
		return errors.Join(err, s.Stop(Immediate))
	}
	return nil
}

func (s *Server) await(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	return s.process.await(ctx, "PostgreSQL", s.URL("postgres"), s.tail)
}

// await returns once the server at an address takes connections. said is the end of its log.
func (p *process) await(ctx context.Context, what, address string, said func() []byte) (err error) {
	ended := false
	there := waits.Until(ctx, 20*time.Millisecond, func() bool {
		var conn *pgx.Conn
		if conn, err = pgx.Connect(ctx, address); err == nil {
			err = conn.Close(ctx)
			return true
		}
		select {
		case <-p.exited:
			ended = true
		default:
		}
		return ended
	})
	switch {
	case ended:
		return fmt.Errorf("pgtest: start %s: it ended:\n%s", what, said())
	case !there:
		return fmt.Errorf("pgtest: start %s: %w: last: %w\n%s", what, ctx.Err(), err, said())
	}
	return err
}

func (s *Server) tail() []byte {
	log, _ := os.ReadFile(s.log())
	return lastLines(log)
}

func lastLines(log []byte) []byte {
	lines := bytes.Split(bytes.TrimSpace(log), []byte("\n"))
	return bytes.Join(lines[max(0, len(lines)-20):], []byte("\n"))
}

// Mode is a way to stop a server.
type Mode int

const (
	// Fast rolls back open transactions, closes connections and writes a checkpoint.
	Fast Mode = iota

	// Immediate is a crash: the server writes and sends nothing, and the next start recovers.
	Immediate
)

// Stop stops the server and returns when it has ended. Its data stays.
func (s *Server) Stop(m Mode) error {
	if s.process == nil {
		return nil
	}
	sig := os.Signal(sigFast)
	if m == Immediate {
		sig = sigImmediate
	}
	if err := s.process.signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("pgtest: stop PostgreSQL: %w", err)
	}
	select {
	case <-s.process.exited:
	case <-time.After(stopTimeout):
		_ = s.process.signal(os.Kill)
		return fmt.Errorf("pgtest: stop PostgreSQL: killed after %v\n%s", stopTimeout, s.tail())
	}
	s.process = nil
	return nil
}

// Close stops the server and deletes its data. It may be called again.
func (s *Server) Close() error {
	s.closeOnce.Do(func() {
		s.closeErr = errors.Join(s.Stop(Immediate), s.guard.close())
	})
	return s.closeErr
}

// URL connects the superuser to a database. A new server has a database named postgres.
func (s *Server) URL(database string) string {
	u := url.URL{
		Scheme:   "postgres",
		User:     url.UserPassword(superuser, s.password),
		Host:     net.JoinHostPort("127.0.0.1", strconv.Itoa(int(s.port))),
		Path:     "/" + database,
		RawQuery: "sslmode=disable",
	}
	return u.String()
}

func freePort() (uint32, error) {
	ports, err := freeport.Take(1)
	if err != nil {
		return 0, fmt.Errorf("pgtest: %w", err)
	}
	return uint32(ports[0]), nil
}

func randomName() string {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return "t" + hex.EncodeToString(b[:])
}

// fetchable has the versions of PostgreSQL that can be fetched, by the value of Env: the newest,
// and the oldest that the sinks support.
var fetchable = map[string]string{
	"embedded":    "18.3.0",
	"embedded:18": "18.3.0",
	"embedded:17": "17.5.0",
	"embedded:14": "14.18.0",
}

func binaries() (string, error) {
	version, asked := fetchable[os.Getenv(Env)]
	if !asked {
		if dir, ok := installed(); ok {
			return dir, nil
		}
		version = fetchable["embedded"]
	}
	return fetched(version)
}

// installed looks on PATH and in Debian's directories, newest first.
func installed() (string, bool) {
	var dirs []string
	if path, err := exec.LookPath("initdb"); err == nil {
		dirs = append(dirs, filepath.Dir(path))
	}
	debian, _ := filepath.Glob("/usr/lib/postgresql/*/bin")
	slices.SortFunc(debian, func(a, b string) int { return major(b) - major(a) })
	for _, dir := range append(dirs, debian...) {
		if complete(dir) {
			return dir, true
		}
	}
	return "", false
}

func major(bin string) int {
	n, _ := strconv.Atoi(filepath.Base(filepath.Dir(bin)))
	return n
}

func complete(dir string) bool {
	for _, name := range []string{"initdb", "postgres"} {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.IsDir() {
			return false
		}
	}
	return true
}

// fetched returns the embedded binaries. The first call on a machine downloads and extracts them.
func fetched(version string) (string, error) {
	cache, err := cacheDir()
	if err != nil {
		return "", fmt.Errorf("pgtest: fetch PostgreSQL: %w", err)
	}
	release, err := lockFile(filepath.Join(cache, "lock")) // go test runs packages in parallel
	if err != nil {
		return "", fmt.Errorf("pgtest: fetch PostgreSQL: %w", err)
	}
	defer release()

	home := filepath.Join(cache, version)
	bin := filepath.Join(home, "bin")
	if complete(bin) {
		return bin, nil
	}
	if err := os.RemoveAll(home); err != nil {
		return "", fmt.Errorf("pgtest: fetch PostgreSQL: %w", err)
	}
	cmd := exec.Command("go", "run", "-mod=readonly", "-buildvcs=false", ".", version, cache, home)
	cmd.Dir = fetchDir()
	cmd.Env = append(os.Environ(), "GOWORK=off")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("pgtest: fetch PostgreSQL: %w\n%s", err, out)
	}
	if !complete(bin) {
		return "", fmt.Errorf("pgtest: fetch PostgreSQL: %s lacks initdb or postgres", bin)
	}
	return bin, nil
}

func fetchDir() string {
	_, file, _, _ := runtime.Caller(0)
	return filepath.Join(filepath.Dir(file), "fetch")
}

// cacheDir returns the directory of fetched binaries. For root it is in the temporary directory,
// because the user that the server runs as cannot read root's home.
func cacheDir() (string, error) {
	dir := filepath.Join(os.TempDir(), "epochfence-postgres")
	if _, _, switched := serverUser(); !switched {
		home, err := os.UserCacheDir()
		if err != nil {
			return "", err
		}
		dir = filepath.Join(home, "epochfence", "postgres")
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	if !ownedByUs(dir) {
		return "", fmt.Errorf("%s is not ours alone: remove it", dir)
	}
	return dir, nil
}
