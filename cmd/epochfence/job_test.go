package main

import (
	"context"
	"database/sql"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/epochfence/epochfence/cas/memstore"
	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/schedule"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/sinks/sqlsink"
)

func TestAJobIsOperatedByTimes(t *testing.T) {
	c := golden(t)
	db, err := sql.Open("sqlite", c.env["EPOCHFENCE_DATABASE"])
	must(t, err)
	t.Cleanup(func() { _ = db.Close() })
	sink, err := sqlsink.Open(t.Context(), db, sqlsink.SQLite, sqlsink.Options{})
	must(t, err)
	ran := make(chan schedule.Tick, 10)
	quiet := slog.New(slog.DiscardHandler)
	jobs, err := schedule.New(schedule.Options{Store: memstore.New(), Group: "reports", Name: "pod-1", Logger: quiet},
		schedule.Job[*sqlsink.Tx]{Name: "yearly", Cron: "@yearly", Zone: "Pacific/Auckland", Do: func(_ context.Context, _ *sqlsink.Tx, t schedule.Tick, _ epoch.Epoch) error {
			ran <- t
			return nil
		}})
	must(t, err)
	claimed := make(chan struct{}, 10)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- consumer.Run(ctx, jobs, sink, jobs.Handlers(), consumer.Options{MaxBatch: 1, Logger: quiet, Observe: func(e consumer.Event) {
			if _, ok := e.(consumer.Claimed); ok {
				claimed <- struct{}{}
			}
		}})
	}()
	defer func() { stop(); must(t, <-done) }()
	<-claimed

	const job = "reports/yearly/0"
	if out := c.does(exitOK, "list", job).out; !strings.Contains(out, time.Now().UTC().Format("2006-01-02T")) {
		t.Errorf("list:\n%s", out)
	}
	if out := c.does(exitOK, "describe", job).out; strings.Contains(out, "log") {
		t.Errorf("describe:\n%s", out)
	}
	c.does(exitOK, "check", "--group", "reports")
	if out := c.does(exitOK, "run", job).out; !strings.Contains(out, "runs now, beside its ticks") || len(ran) > 0 {
		t.Errorf("a dry run of run:\n%s", out)
	}
	c.does(exitOK, "run", job, "--execute", "--by", "anna", "--reason", "the auditors came early")
	if tick := <-ran; !tick.Requested {
		t.Errorf("it ran %+v", tick)
	}
	if out := c.does(exitOK, "history", job).out; !strings.Contains(out, "the auditors came early") {
		t.Errorf("history:\n%s", out)
	}
	if out := c.does(exitOK, "rewind", job, "--to", "@2026-01-01T00:00:00Z").out; !strings.Contains(out, "continues with its ticks from 2026-01-01T00:00:00Z on") {
		t.Errorf("a dry run of rewind:\n%s", out)
	}
	c.does(exitUsage, "rewind", job, "--to", "start")
	c.does(exitOK, "rewind", job, "--to", "@2025-01-01T00:00:00Z", "--execute", "--by", "anna", "--reason", "again")
	if tick := <-ran; tick.Requested || tick.At.Format(time.RFC3339) != "2026-01-01T00:00:00+13:00" {
		t.Errorf("after the rewind it ran %+v", tick)
	}
}

func TestAPartitionThatIsNoJobIsNotRun(t *testing.T) {
	c := golden(t)
	if out := c.does(exitUsage, "run", "billing/orders/0").errs; !strings.Contains(out, "it is no job") {
		t.Error(out)
	}
}
