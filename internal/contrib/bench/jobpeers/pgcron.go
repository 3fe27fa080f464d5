package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/epochfence/epochfence/internal/servers/pgtest"
)

// pgCron is a server with a job that takes as many seconds each minute. There are no pods: the job is a
// statement, and its transaction is in the server.
type pgCron struct {
	*pgtest.Server
	seconds int
	begun   time.Time
}

// playPgCron needs six minutes, because the version that Debian has knows no ticks within a minute.
func playPgCron(ctx context.Context, only string) (string, error) {
	stories := []struct {
		name    string
		seconds int
		play    func(*pgCron, context.Context) error
	}{
		{"the server is killed in a run", 20, (*pgCron).killed},
		{"the server is frozen in a run for 130 s", 20, (*pgCron).frozen},
		{"the server is away for 130 s", 1, (*pgCron).away},
		{"a run takes 90 s", 90, (*pgCron).overrun},
	}
	said := make([]string, len(stories))
	errs := make([]error, len(stories))
	var all sync.WaitGroup
	for i, st := range stories {
		if only != "" && only != st.name {
			continue
		}
		all.Go(func() {
			said[i], errs[i] = playPgCronStory(ctx, st.seconds, st.play)
			said[i] = st.name + ":\n" + said[i]
		})
	}
	all.Wait()
	played := slices.DeleteFunc(said, func(s string) bool { return s == "" })
	return strings.Join(played, "\n"), errors.Join(errs...)
}

func playPgCronStory(ctx context.Context, seconds int, story func(*pgCron, context.Context) error) (string, error) {
	server, err := pgtest.Launch(ctx, pgtest.Options{Settings: map[string]string{
		"shared_preload_libraries": "pg_cron", "cron.use_background_workers": "on", "cron.database_name": "postgres",
	}})
	if err != nil {
		return "", fmt.Errorf("pg_cron: %w (Debian has it as postgresql-15-cron)", err)
	}
	defer func() { _ = server.Close() }()
	c := &pgCron{Server: server, seconds: seconds}
	err = execute(ctx, c.URL("postgres"), schema+fmt.Sprintf(`; create extension pg_cron;
		select cron.schedule('invoices', '* * * * *', $$with due as materialized (
			select id from customer where not exists (select from invoice where customer = id)), work as materialized (select pg_sleep(%d))
			insert into invoice (customer, tick) select id, 'x' from due, work$$)`, seconds))
	if err != nil {
		return "", err
	}
	if err := story(c, ctx); err != nil {
		return "", err
	}
	return c.history(ctx)
}

func (c *pgCron) ask(ctx context.Context, sql string) (lines []string, err error) {
	conn, err := pgx.Connect(ctx, c.URL("postgres"))
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close(ctx) }()
	rows, err := conn.Query(ctx, sql)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}

// running waits until a run is in its work.
func (c *pgCron) running(ctx context.Context) error {
	for range 1000 {
		is, err := c.ask(ctx, `select status from cron.job_run_details where status = 'running'`)
		if err != nil {
			return err
		}
		if len(is) > 0 {
			c.begun = time.Now()
			pause(ctx, 5*time.Second)
			return nil
		}
		pause(ctx, 100*time.Millisecond)
	}
	return errors.New("pg_cron: no run has begun")
}

func (c *pgCron) history(ctx context.Context) (string, error) {
	runs, err := c.ask(ctx, `select format('   run %s: %s to %s, %s, %s', runid, to_char(start_time at time zone 'UTC', 'HH24:MI:SS'),
		to_char(end_time at time zone 'UTC', 'HH24:MI:SS'), status, return_message) from cron.job_run_details order by runid`)
	if err != nil {
		return "", err
	}
	n, err := c.ask(ctx, `select format('   %s invoices for %s customers, written at %s', count(*), count(distinct customer),
		to_char(min(at) at time zone 'UTC', 'HH24:MI:SS')) from invoice`)
	return strings.Join(append(runs, n...), "\n"), err
}

func (c *pgCron) killed(ctx context.Context) error {
	if err := c.running(ctx); err != nil {
		return err
	}
	if err := c.Stop(pgtest.Immediate); err != nil {
		return err
	}
	if err := c.Start(ctx); err != nil {
		return err
	}
	pause(ctx, 100*time.Second)
	return nil
}

func (c *pgCron) away(ctx context.Context) error {
	if err := c.running(ctx); err != nil {
		return err
	}
	if err := c.Stop(pgtest.Fast); err != nil {
		return err
	}
	pause(ctx, 130*time.Second)
	if err := c.Start(ctx); err != nil {
		return err
	}
	pause(ctx, 70*time.Second)
	return nil
}

func (c *pgCron) overrun(ctx context.Context) error {
	pause(ctx, 5*time.Minute)
	return nil
}

func (c *pgCron) frozen(ctx context.Context) error {
	if err := c.running(ctx); err != nil {
		return err
	}
	pids, err := c.processes(ctx)
	if err != nil {
		return err
	}
	if err := signalAll(pids, syscall.SIGSTOP); err != nil {
		return err
	}
	pause(ctx, 130*time.Second)
	if err := signalAll(pids, syscall.SIGCONT); err != nil {
		return err
	}
	pause(ctx, 80*time.Second)
	return nil
}

func signalAll(pids []int, s syscall.Signal) error {
	for _, pid := range pids {
		if err := syscall.Kill(pid, s); err != nil && !errors.Is(err, syscall.ESRCH) { // a backend may have ended
			return fmt.Errorf("signal process %d of PostgreSQL: %w", pid, err)
		}
	}
	return nil
}

// processes returns the postmaster and its children.
func (c *pgCron) processes(ctx context.Context) ([]int, error) {
	launcher, err := c.ask(ctx, `select pid::text from pg_stat_activity where backend_type = 'pg_cron launcher'`)
	if err != nil || len(launcher) == 0 {
		return nil, errors.Join(errors.New("pg_cron: no launcher"), err)
	}
	postmaster, err := parent("/proc/" + launcher[0])
	if err != nil {
		return nil, err
	}
	pids := []int{postmaster}
	all, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil, err
	}
	for _, dir := range all {
		if p, err := parent(dir); err == nil && p == postmaster {
			pid, err := strconv.Atoi(filepath.Base(dir))
			if err != nil {
				return nil, err
			}
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

func parent(dir string) (int, error) {
	stat, err := os.ReadFile(dir + "/stat")
	if err != nil {
		return 0, err
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	fields := strings.Fields(rest)
	if len(fields) < 2 {
		return 0, fmt.Errorf("%s/stat has no parent", dir)
	}
	return strconv.Atoi(fields[1])
}
