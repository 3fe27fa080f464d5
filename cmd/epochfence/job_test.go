package main

import (
	"context"
	"database/sql"
	"errors"
	"log/slog"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/epochfence/epochfence/cas/memstore"
	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/schedule"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/operate"
	"github.com/epochfence/epochfence/sinks/sqlsink"
)

var microseconds = regexp.MustCompile(`\d{16}`) // since 1970

func TestAJobIsOperatedByTimes(t *testing.T) {
	c := golden(t)
	db, err := sql.Open("sqlite", c.env["EPOCHFENCE_DATABASE"])
	must(t, err)
	t.Cleanup(func() { _ = db.Close() })
	sink, err := sqlsink.Open(t.Context(), db, sqlsink.SQLite, sqlsink.Options{})
	must(t, err)
	ran := make(chan schedule.Tick, 10)
	var broken atomic.Bool
	quiet := slog.New(slog.DiscardHandler)
	jobs, err := schedule.New(schedule.Options{Store: memstore.New(), Group: "reports", Name: "pod-1", Logger: quiet},
		schedule.Job[*sqlsink.Tx]{Name: "yearly", Cron: "@yearly", Zone: "Pacific/Auckland", Do: func(_ context.Context, _ *sqlsink.Tx, t schedule.Tick, _ epoch.Epoch) error {
			ran <- t
			if broken.Load() {
				return consumer.Permanent(errors.New("no such printer"))
			}
			return nil
		}})
	must(t, err)
	claimed, advanced := make(chan struct{}, 10), make(chan struct{}, 10)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- consumer.Run(ctx, jobs, sink, jobs.Handlers().OnFailure(sink.DeadLetter), consumer.Options{MaxBatch: 1, Logger: quiet, Observe: func(e consumer.Event) {
			switch e.(type) {
			case consumer.Claimed:
				claimed <- struct{}{}
			case consumer.Advanced:
				advanced <- struct{}{}
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
	if out := c.does(exitOK, "run", job).out; !strings.Contains(out, "the owner of the job runs it once, beside its ticks") || len(ran) > 0 {
		t.Errorf("a dry run of run:\n%s", out)
	}
	c.does(exitOK, "run", job, "--execute", "--by", "anna", "--reason", "the auditors came early")
	if tick := <-ran; !tick.Requested {
		t.Errorf("it ran %+v", tick)
	}
	<-advanced
	f, err := epoch.FenceOf(t.Context(), sink, epoch.Partition{Group: "reports", Topic: "yearly"})
	must(t, err)
	at, _ := operate.JobTime(f.Next) // after the requested run, and before the next tick
	for _, command := range []string{"history " + job, "history --group reports", "history --kind run"} {
		out := c.does(exitOK, strings.Fields(command)...).out
		tells(t, out, " run ", "the auditors came early", stamp(at.Add(-time.Second)))
		if strings.Contains(out, "rewind") || microseconds.MatchString(out) {
			t.Errorf("%s:\n%s", command, out)
		}
	}
	out := c.does(exitOK, "explain", job, "--at", "-0s").out
	tells(t, out, "next position "+stamp(at), "ran or left out the ticks in [", ", "+stamp(at)+")", "claimed it under epoch", ", at position "+stamp(at.Add(-time.Second)))
	if microseconds.MatchString(out) {
		t.Errorf("explain:\n%s", out)
	}
	tells(t, c.does(exitOK, "explain", job, "--offset", text(f.Next)).out, "The tick of "+stamp(at)+" was neither run nor left out: the job is at "+stamp(at))
	var requested struct{ Decisions []struct{ Claim string } }
	c.reads(&requested, "history", job, "--kind", "run")
	tells(t, c.does(exitOK, "explain", job, "--claim", requested.Decisions[0].Claim).out, "anna requested a run: the auditors came early")
	if out := c.does(exitOK, "rewind", job, "--to", "@2026-01-01T00:00:00Z").out; !strings.Contains(out, "continues with its ticks from 2026-01-01T00:00:00Z on") {
		t.Errorf("a dry run of rewind:\n%s", out)
	}
	c.does(exitUsage, "rewind", job, "--to", "start")
	first := c.does(exitOK, "rewind", job, "--to", "end").out
	later := first
	for later == first { // until the next second
		later = c.does(exitOK, "rewind", job, "--to", "end").out
	}
	plan := regexp.MustCompile(`--plan=\w+`)
	if plan.FindString(first) != plan.FindString(later) {
		t.Errorf("the plan changes with the time:\n%s%s", first, later)
	}
	tells(t, c.does(exitOK, "skip", job, "--through", "@2099-01-01T00:00:00Z").out, "the ticks before 2099-01-01T00:00:01Z are left out")
	c.does(exitUsage, "skip", job, "--through", "+1")
	c.does(exitUsage, "skip", "billing/orders/0", "--through", "@2099-01-01T00:00:00Z")
	if out := c.does(exitError, "skip", job, "--through", "@2026-01-01T00:00:00Z").errs; !strings.Contains(out, "was applied or skipped: the next one is "+stamp(at)) {
		t.Error(out)
	}
	c.does(exitOK, "rewind", job, "--to", "@2025-01-01T00:00:00Z", "--execute", "--by", "anna", "--reason", "again")
	if tick := <-ran; tick.Requested || tick.At.Format(time.RFC3339) != "2026-01-01T00:00:00+13:00" {
		t.Errorf("after the rewind it ran %+v", tick)
	}

	<-advanced
	broken.Store(true)
	c.does(exitOK, "run", job, "--execute", "--by", "anna", "--reason", "once more")
	tick := <-ran
	<-advanced
	for _, command := range []string{"deadletters list " + job, "deadletters show 1", "deadletters discard 1"} {
		if strings.HasSuffix(command, " 1") {
			var letters struct {
				DeadLetters []struct{ ID int64 } `json:"dead_letters"`
			}
			c.reads(&letters, "deadletters", "list", job)
			command = strings.TrimSuffix(command, "1") + text(letters.DeadLetters[0].ID)
		}
		out := c.does(exitOK, strings.Fields(command)...).out
		if tells(t, out, stamp(tick.At)); microseconds.MatchString(strings.ReplaceAll(out, "the message at offset "+text(operate.JobOffset(tick.At)), "")) {
			t.Errorf("%s:\n%s", command, out)
		}
	}
}

func TestAPartitionThatIsNoJobIsNotRun(t *testing.T) {
	c := golden(t)
	if out := c.does(exitUsage, "run", "billing/orders/0").errs; !strings.Contains(out, "it is no job") {
		t.Error(out)
	}
}
