package main

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"strings"
	"testing"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/servers/mariatest"
	"github.com/epochfence/epochfence/outbox"
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
	t.Run("grants", func(t *testing.T) { grantsInMariaDB(t, s) })
	open := func(t *testing.T) func(broken) *place {
		return func(b broken) *place { return inMariaDB(t, s, b) }
	}
	t.Run("outbox", func(t *testing.T) { besideALiveRelay(t, open(t)) })
	for name, do := range commands {
		t.Run(name, func(t *testing.T) { besideALiveConsumer(t, open(t), do) })
	}
}

// Each kind of user may do what it is for. An application needs no privilege for temporary tables, though the sink
// looks for them after a handler's SET.
func grantsInMariaDB(t *testing.T, s *mariatest.Server) {
	p := inMariaDB(t, s, nil)
	owner := &cli{t, map[string]string{"EPOCHFENCE_DATABASE": p.url}}
	tells(t, owner.does(exitOK, "grants", "--role", "o'brien@%", "--as", "operator").out, ".epochfence_fence TO 'o''brien'@'%';", "Add --execute")
	db, err := sql.Open("mysql", s.DSN("mysql", ""))
	must(t, err)
	t.Cleanup(func() { _ = db.Close() })
	users, names := map[roleKind]*cli{}, map[roleKind]string{}
	for _, kind := range roleKinds {
		name := strings.ToLower(rand.Text())
		names[kind] = name
		_, err := db.ExecContext(t.Context(), "CREATE USER '"+name+"'@'127.0.0.1'")
		must(t, err)
		owner.does(exitOK, "grants", "--role", name+"@127.0.0.1", "--as", string(kind), "--execute")
		users[kind] = &cli{t, map[string]string{"EPOCHFENCE_DATABASE": strings.Replace(p.url, "root@", name+"@", 1)}}
	}
	users[application].does(exitOK, "drill", "--execute")
	asApplication, err := sql.Open("mysql", strings.Replace(s.DSN(p.url[strings.LastIndex(p.url, "/")+1:], ""), "root@", names[application]+"@", 1))
	must(t, err)
	t.Cleanup(func() { _ = asApplication.Close() })
	sink, err := sqlsink.Open(t.Context(), asApplication, sqlsink.MariaDB, sqlsink.Options{})
	must(t, err)
	store, err := sqloutbox.Open[*sqlsink.Tx](t.Context(), asApplication, sqloutbox.MariaDB, sqloutbox.Options{})
	must(t, err)
	origin := epoch.Origin{Partition: epoch.Partition{Group: "granted", Topic: "orders"}, Log: "log", Source: "broker"}
	must(t, sink.Seed(t.Context(), []epoch.Start{{Origin: origin}}))
	seen, err := epoch.FenceOf(t.Context(), sink, origin.Partition)
	must(t, err)
	f, err := sink.Claim(t.Context(), seen, epoch.NewClaim(epoch.Lease{Origin: origin, Generation: 1, Owner: "a"}))
	must(t, err)
	must(t, sink.Commit(t.Context(), []epoch.Advance{{Partition: f.Partition, Claim: f.Claim, From: f.Next, To: f.Next + 1}}, epoch.TxOptions{}, func(ctx context.Context, tx *sqlsink.Tx) error {
		m := epoch.Message{Partition: f.Partition}
		_, err := tx.ExecContext(ctx, "SET NAMES utf8mb4")
		return errors.Join(err, store.Add(ctx, tx, m, outbox.Entry{Method: "POST", URL: "http://receiver", IdempotencyKey: "k"}), sink.DeadLetter(ctx, tx, m, f.Epoch, errDrill))
	}))
	const fence, why = "epochfence-drill/drill/0", " --execute --by anna --reason now"
	for _, l := range []struct {
		kind roleKind
		code int
		args string
	}{
		{reader, exitOK, "list"},
		{reader, exitOK, "history"},
		{reader, exitOK, "explain " + fence},
		{reader, exitOK, "outbox list"},
		{reader, exitError, "evict " + fence + why},
		{reader, exitError, "drill --execute"},
		{operator, exitOK, "evict " + fence + why},
		{operator, exitOK, "pause " + fence + why},
		{operator, exitOK, "resume " + fence + why},
	} {
		users[l.kind].does(l.code, strings.Fields(l.args)...)
	}
}
