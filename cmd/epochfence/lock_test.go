package main

import (
	"context"
	"database/sql"
	"log/slog"
	"strings"
	"testing"

	"github.com/epochfence/epochfence/cas/memstore"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/lease"
	"github.com/epochfence/epochfence/sinks/sqlsink"
)

// A lock has no log, and between two holders no owner that is alive.
func TestALockIsWellWithoutAnOwnerOrALog(t *testing.T) {
	c := golden(t)
	db, err := sql.Open("sqlite", c.env["EPOCHFENCE_DATABASE"])
	must(t, err)
	t.Cleanup(func() { _ = db.Close() })
	sink, err := sqlsink.Open(t.Context(), db, sqlsink.SQLite, sqlsink.Options{})
	must(t, err)
	m, err := lease.Open(t.Context(), memstore.New(), lease.Options{Group: "reports", Name: "pod-1", Logger: slog.New(slog.DiscardHandler)})
	must(t, err)
	t.Cleanup(m.Close)
	for range 25 { // more claims than a consumer has in an hour
		must(t, lease.Do(t.Context(), m, sink, "nightly", func(context.Context, *sqlsink.Tx, epoch.Epoch) error { return nil }))
	}
	for _, command := range []string{"list", "describe"} {
		out := c.does(exitOK, command, "reports/nightly/0").out
		if !strings.Contains(out, "lock") || !strings.Contains(out, "pod-1") || strings.Contains(out, "UNKNOWN_TOPIC") || strings.Contains(out, "no sign of life") {
			t.Errorf("%s:\n%s", command, out)
		}
	}
	c.does(exitOK, "check", "--group", "reports", "--max-claims", "20")
	if out := c.does(exitOK, "owners", "--group", "reports").out; strings.Contains(out, "pod-1") {
		t.Errorf("owners:\n%s", out)
	}
	c.does(exitOK, "pause", "reports/nightly/0", "--execute", "--by", "anna", "--reason", "stocktaking")
	if out := c.does(exitTrouble, "check", "--group", "reports").out; !strings.Contains(out, "stocktaking") || strings.Contains(out, "alive") {
		t.Errorf("check of a paused lock:\n%s", out)
	}
}
