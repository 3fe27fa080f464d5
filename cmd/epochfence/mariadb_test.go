package main

import (
	"crypto/rand"
	"database/sql"
	"errors"
	"strings"
	"testing"

	"github.com/epochfence/epochfence/internal/servers/mariatest"
	"github.com/epochfence/epochfence/outbox/sqloutbox"
	"github.com/epochfence/epochfence/sinks/sqlsink"
)

func inMariaDB(t *testing.T, s *mariatest.Server, fails broken) *place {
	t.Helper()
	url, db := newMariaDB(t, s)
	return inSQL(t, url, db, sqlsink.MariaDB, sqloutbox.MariaDB, "BIGINT PRIMARY KEY AUTO_INCREMENT", fails)
}

func newMariaDB(t *testing.T, s *mariatest.Server) (url string, db *sql.DB) {
	t.Helper()
	name := "t" + strings.ToLower(rand.Text())
	admin, err := sql.Open("mysql", s.DSN("", ""))
	must(t, err)
	_, err = admin.ExecContext(t.Context(), "CREATE DATABASE "+name)
	must(t, errors.Join(err, admin.Close()))
	db, err = sql.Open("mysql", s.DSN(name, ""))
	must(t, err)
	t.Cleanup(func() { _ = db.Close() })
	return "mysql://root@" + s.Address + "/" + name, db
}

// What runs everywhere runs on MariaDB too, on one server.
func TestOnMariaDB(t *testing.T) {
	t.Parallel()
	s := mariatest.Start(t)
	url, _ := newMariaDB(t, s)
	t.Run("migrate", func(t *testing.T) {
		c := &cli{t, map[string]string{"EPOCHFENCE_DATABASE": url}}
		tells(t, c.does(exitOK, "migrate", "up").out, "fence", "ledger", "outbox", "To do it, add --execute")
		tells(t, c.does(exitOK, "migrate", "get", "--after", "2").out, "ENGINE = InnoDB")
		c.does(exitOK, "migrate", "up", "--execute")
		tells(t, c.does(exitOK, "migrate", "up").out, "up to date")
		tells(t, c.run("doctor").out, "MariaDB", "innodb_flush_log_at_trx_commit is 0")
	})
	open := func(t *testing.T) func(broken) *place {
		return func(b broken) *place { return inMariaDB(t, s, b) }
	}
	t.Run("outbox", func(t *testing.T) { besideALiveRelay(t, open(t)) })
	for name, do := range commands {
		t.Run(name, func(t *testing.T) { besideALiveConsumer(t, open(t), do) })
	}
}
