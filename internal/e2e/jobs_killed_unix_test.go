//go:build unix

package e2e_test

import (
	"fmt"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

// This file has jobs whose leases and effects are in one PostgreSQL, and what becomes of those of a process that is
// killed or frozen.

// No tick is left out, and none is run twice.
func TestJobsOfAProcessThatDiesAreTakenOverWithinSeconds(t *testing.T) {
	t.Parallel()
	for name, signal := range map[string]syscall.Signal{"killed": syscall.SIGKILL, "frozen": syscall.SIGSTOP} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			jobsAreTakenOver(t, signal)
		})
	}
}

func jobsAreTakenOver(t *testing.T, signal syscall.Signal) {
	d := newPostgres(t).granted()
	d.exec("create table run (job int, at timestamptz, worker text)")
	d.exec("grant select, insert on run to " + d.role)
	start := func(name string) *exec.Cmd {
		return startWorker(t, name, jobsEnv, [2]string{name, d.url}, &processLog{})
	}
	// until waits for a condition of the database, and returns how long that took.
	until := func(what, condition string) time.Duration {
		t.Helper()
		for began := time.Now(); ; <-time.After(5 * time.Millisecond) {
			var holds bool
			if err := d.admin.QueryRow(t.Context(), "select "+condition).Scan(&holds); err != nil {
				t.Fatal(err)
			}
			if holds {
				return time.Since(began)
			}
			if time.Since(began) > patience {
				t.Fatalf("not within %v: %s", patience, what)
			}
		}
	}
	victim := start("victim")
	start("survivor")
	const both = "(select count(*) filter (where n >= 4) >= 8 from (select count(*) as n from run where at > $1 group by job, worker) r) and (select count(distinct worker) = 2 from run where at > $1)"
	shared := func(what string) {
		t.Helper()
		var since time.Time
		if err := d.admin.QueryRow(t.Context(), "select coalesce(max(at), 'epoch') from run").Scan(&since); err != nil {
			t.Fatal(err)
		}
		until(what, strings.ReplaceAll(both, "$1", "'"+since.Format(time.RFC3339Nano)+"'::timestamptz"))
	}
	shared("both have run their jobs four times")
	if err := victim.Process.Signal(signal); err != nil {
		t.Fatal(err)
	}
	took := until("the survivor owns all jobs", fmt.Sprintf("count(*) filter (where owner like '%%survivor%%') = %d from epochfence.fence", jobsOfAll))
	t.Logf("its jobs waited for %v", took)
	if took > noticedWithin {
		t.Errorf("its jobs waited for %v", took)
	}
	until("the audit log says who suspected whom", `count(*) > 0 from epochfence.fence_ledger where kind = 'entry' and state = 'suspected'
		and group_name = '`+group+`' and body ->> 'owner' like '%survivor%' and cause like '%victim%'`)
	if signal == syscall.SIGSTOP { // it comes back, and shares again
		if err := victim.Process.Signal(syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
		shared("both run jobs again")
	}
	var ticks, different, seconds int
	if err := d.admin.QueryRow(t.Context(), `select sum(n), sum(d), sum(s) from (
		select count(*) as n, count(distinct at) as d, extract(epoch from max(at) - min(at))::int + 1 as s from run group by job) r`).Scan(&ticks, &different, &seconds); err != nil {
		t.Fatal(err)
	}
	if ticks != different || ticks != seconds {
		t.Errorf("%d runs of %d ticks in %d seconds of all jobs", ticks, different, seconds)
	}
}
