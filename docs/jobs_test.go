package docs

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/epochfence/epochfence/cas/memstore"
	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/schedule"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/operate"
	"github.com/epochfence/epochfence/sinks/sqlsink"
)

// reindex indexes a hundred documents in each step. What is left to do, it reads from the index.
func reindex(ctx context.Context, tx *sqlsink.Tx, _ schedule.Tick, _ epoch.Epoch) (done bool, err error) {
	const most = 100
	r, err := tx.ExecContext(ctx, `insert into word (document, text)
		select id, lower(text) from document where id not in (select document from word) limit ?1`, most)
	if err != nil {
		return false, err
	}
	n, err := r.RowsAffected()
	return n < most, err
}

func TestTheJobOfThePageRunsInSteps(t *testing.T) {
	db, err := sql.Open("sqlite", "file:"+filepath.Join(t.TempDir(), "jobs.db")+"?_pragma=journal_mode(WAL)&_pragma=busy_timeout(10000)")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	if _, err := db.ExecContext(t.Context(), `create table word (document integer, text text); create table document (id integer primary key, text text);
		with recursive n(i) as (select 1 union all select i+1 from n where i < 250) insert into document select i, 'Text ' || i from n`); err != nil {
		t.Fatal(err)
	}
	if err := sqlsink.Migrate(t.Context(), db, sqlsink.SQLite, sqlsink.Options{}); err != nil {
		t.Fatal(err)
	}
	sink, err := sqlsink.Open(t.Context(), db, sqlsink.SQLite, sqlsink.Options{})
	if err != nil {
		t.Fatal(err)
	}
	operator, err := sqlsink.OpenOperator(t.Context(), db, sqlsink.SQLite, sqlsink.Options{})
	if err != nil {
		t.Fatal(err)
	}
	jobs, err := schedule.New(schedule.Options{Store: memstore.New(), Group: "billing"},
		schedule.Job[*sqlsink.Tx]{Name: "reindex", Cron: "@hourly", Step: reindex})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- consumer.Run(ctx, jobs, sink, jobs.Handlers().OnFailure(sink.DeadLetter), consumer.Options{MaxBatch: 1})
	}()
	runNow(t, operator, sink, "reindex")
	counts(t, db, `select count(*) from word`, 250)
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// runNow requests a run of a job, once a process has claimed it.
func runNow(t *testing.T, operator operate.Operator, sink *sqlsink.Sink, job string) {
	t.Helper()
	eventually(t, func() (bool, string) {
		f, err := epoch.FenceOf(t.Context(), sink, epoch.Partition{Group: "billing", Topic: job})
		if errors.Is(err, epoch.ErrMissing) || err == nil && f.Epoch == 0 {
			return false, job + " was not claimed"
		}
		var a operate.Act
		if err == nil {
			a, err = operate.NewRun(f, "a test", "to see it run")
		}
		if err == nil {
			_, err = operator.Act(t.Context(), a)
		}
		if err != nil && !errors.Is(err, epoch.ErrStale) && !errors.Is(err, epoch.ErrMoved) {
			t.Fatal(err)
		}
		return err == nil, fmt.Sprint(err)
	})
}

func counts(t *testing.T, db *sql.DB, query string, want int) {
	t.Helper()
	eventually(t, func() (bool, string) {
		var n int
		err := db.QueryRowContext(t.Context(), query).Scan(&n)
		if err != nil || n > want {
			t.Fatalf("%s: %d, %v; want %d", query, n, err, want)
		}
		return n == want, fmt.Sprintf("%s: %d, want %d", query, n, want)
	})
}
