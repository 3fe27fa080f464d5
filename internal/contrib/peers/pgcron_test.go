package peers

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/epochfence/epochfence/internal/servers/pgtest"
)

// startPgCron starts a server of its own for pg_cron. A frozen process of a server holds up whoever
// drops a database there.
func (s *servers) startPgCron(t *testing.T) {
	server, err := pgtest.Launch(t.Context(), pgtest.Options{NoFsync: true, Settings: map[string]string{
		"shared_preload_libraries": "pg_cron", "cron.use_background_workers": "on", "cron.database_name": "postgres",
		"max_worker_processes": "200", "max_connections": "300", "cron.max_running_jobs": "100",
	}})
	if err == nil {
		t.Cleanup(func() { _ = server.Close() })
		err = execute(t.Context(), server.URL("postgres"), `create extension pg_cron`)
	}
	if err != nil {
		s.cronless = fmt.Sprintf("%v (Debian has it as postgresql-15-cron)", err)
	}
	s.cron = server
}

func (s *servers) pgCronVersion(t *testing.T) string {
	return answer(t, s.cron.URL("postgres"), `select extversion from pg_extension where extname = 'pg_cron'`)
}

func (s *servers) withoutPgCron() string { return s.cronless }

// playPgCron freezes the process of the server that has a run. There are no workers: the job is a
// statement. Debian's version knows no ticks within a minute.
func (s *servers) playPgCron(ctx context.Context, k kind) (o outcome) {
	name := fmt.Sprint("trial_", s.last.Add(1))
	root := s.cron.URL("postgres")
	o.err = errors.Join(execute(ctx, root, "create database "+name), execute(ctx, s.cron.URL(name), schema))
	if o.err != nil {
		return o
	}
	o.err = execute(ctx, root, fmt.Sprintf(`select cron.schedule_in_database('%[1]s', '* * * * *', $job$do $$
		declare due int[] := array(select id from item where not exists (select from effect where item = id));
		begin perform pg_sleep(3); insert into effect (item) select unnest(due); perform pg_sleep(3); end $$$job$, '%[1]s')`, name))
	if o.err != nil {
		return o
	}
	st := &stage{config: config{ID: name}}
	if st.db, o.err = pgx.Connect(ctx, s.cron.URL(name)); o.err != nil {
		return o
	}
	defer func() { _ = st.db.Close(context.WithoutCancel(ctx)) }()
	has := "not exists" // the insert's lock
	if k.freeze != inWork {
		has = "exists"
	}
	running := `from pg_stat_activity a where datname = current_database() and wait_event = 'PgSleep' and ` + has + `
		(select from pg_locks l where l.pid = a.pid and relation = 'effect'::regclass and mode = 'RowExclusiveLock')`
	if o.err = st.until(ctx, 3*time.Minute, `select count(*) > 0 `+running); o.err != nil {
		return o
	}
	var pid int
	if o.err = st.db.QueryRow(ctx, `select pid `+running).Scan(&pid); o.err != nil {
		return o
	}
	if o.err = syscall.Kill(pid, syscall.SIGSTOP); o.err != nil {
		return o
	}
	// No other run begins at the next tick.
	err := st.until(ctx, 75*time.Second, `select count(distinct item) = 20 from effect`)
	o.waited = errors.Is(err, errNotYet)
	o.said = "process " + strconv.Itoa(pid) + " of the server was frozen"
	o.err = syscall.Kill(pid, syscall.SIGCONT)
	if err != nil && !o.waited {
		o.err = errors.Join(o.err, err)
	}
	pause(ctx, 75*time.Second) // the ticks that follow find nothing to do
	return st.counted(ctx, o)
}
