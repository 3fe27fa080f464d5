// Package mariatest starts MariaDB for tests. It needs no driver, so that the driver stays out of this
// module.
package mariatest

import (
	"cmp"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/epochfence/epochfence/internal/servers/servertest"
)

// Env is the directory of another MariaDB than the one on PATH.
const Env = "EPOCHFENCE_TEST_MARIADB"

// Server is a server without durability, that listens on loopback.
type Server struct{ *servertest.Server }

// Start starts a server, which ends with t. Without MariaDB it skips t, or fails t if CI=true.
func Start(t testing.TB, args ...string) *Server {
	t.Helper()
	base := os.Getenv(Env)
	program, install := filepath.Join(base, "bin", "mariadbd"), filepath.Join(base, "scripts", "mariadb-install-db")
	if base == "" {
		program = servertest.Find(t, "Debian package mariadb-server", "mariadbd")
		install = servertest.Find(t, "Debian package mariadb-server", "mariadb-install-db")
	}
	common := []string{"--no-defaults", "--debug-no-sync"}
	if base != "" {
		common = append(common, "--basedir="+base)
	}
	if os.Getuid() == 0 {
		common = append(common, "--user=root")
	}
	s := servertest.Start(t, func(s *servertest.Server) *exec.Cmd {
		data := filepath.Join(s.Dir, "data")
		// A server that starts deletes the temporary tables of others in its directory of such.
		environment := append(os.Environ(), "TMPDIR="+s.Dir)
		common := append(common[:len(common):len(common)], "--datadir="+data)
		if _, err := os.Stat(data); err != nil {
			// With a password of nobody's, so that tests need none.
			cmd := exec.Command(install, append(common, "--auth-root-authentication-method=normal", "--skip-test-db")...)
			cmd.Env = environment
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("%s: %v\n%s", install, err, out)
			}
		}
		cmd := exec.Command(program, append(append(common, "--bind-address=127.0.0.1", "--port="+s.Port(), "--socket="+filepath.Join(s.Dir, "socket"),
			"--pid-file="+filepath.Join(s.Dir, "pid"), "--skip-name-resolve", "--skip-ssl", "--max-connections=600", "--innodb-flush-log-at-trx-commit=0",
			"--innodb-buffer-pool-size=64M", "--innodb-log-file-size=32M"), args...)...)
		cmd.Env = environment
		return cmd
	})
	return &Server{s}
}

// DSN returns the data source name of a database, for github.com/go-sql-driver/mysql. Without parameters it
// has those that a sink needs.
func (s *Server) DSN(database, parameters string) string {
	return fmt.Sprintf("root@tcp(%s)/%s?%s", s.Address, database, cmp.Or(parameters, "clientFoundRows=true"))
}
