package main

import (
	"database/sql"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/epochfence/epochfence/internal/servers/pgtest"
	"github.com/epochfence/epochfence/operate/observe"
	"github.com/epochfence/epochfence/sinks/sqlsink"
)

// A worker calls observe and is frozen before its COMMIT, until another has taken over. The role of the consumers
// may do no more than call the function, and a reader may read the report.
func TestObserveReportsASecondOwnerInPostgreSQL(t *testing.T) {
	db := pgtest.Start(t)
	owner := &cli{t, map[string]string{"EPOCHFENCE_DATABASE": db.URL}}
	owner.does(exitOK, "migrate", "up", "--execute")
	tells(t, owner.does(exitOK, "observe", "report").out, "Nothing was noted")
	role, url := db.Role(t)
	tells(t, owner.does(exitOK, "grants", "--role", role, "--as", "observer", "--execute").out, `"epochfence".observe`)
	readerRole, readerURL := db.Role(t)
	owner.does(exitOK, "grants", "--role", readerRole, "--as", "reader", "--execute")
	reader := &cli{t, map[string]string{"EPOCHFENCE_DATABASE": readerURL}}

	begin := func() (note func(first, last, generation int, process string), commit func()) {
		conn, err := pgx.Connect(t.Context(), url)
		must(t, err)
		t.Cleanup(func() { _ = conn.Close(t.Context()) })
		tx, err := conn.Begin(t.Context())
		must(t, err)
		note = func(first, last, generation int, process string) {
			var said *string
			must(t, tx.QueryRow(t.Context(), "select epochfence.observe('shipping', 'orders', 3, $1, $2, $3, $4)", first, last, generation, process).Scan(&said))
			if said != nil {
				t.Fatal(*said)
			}
		}
		return note, func() { must(t, tx.Commit(t.Context())) }
	}
	note, frozen := begin()
	note(0, 9, 1, "worker-a")
	note, commit := begin()
	note(0, 9, 2, "worker-b")
	commit()
	note, commit = begin()
	note(10, 29, 2, "worker-b")
	commit()
	frozen()
	note, commit = begin()
	note(30, 39, 2, "worker-b")
	commit()

	out := reader.does(exitTrouble, "observe", "report").out
	tells(t, out, "WRONG: applied twice: 10 effects, in 4 transactions.", "      10  two processes believed", "           1  of a process that had lost",
		"shipping/orders/3, offsets 0 to 9: second owner, 10 messages", "applied by worker-a", "again by   worker-b", "both owned ")
	var report observe.Report
	reader.reads(&report, "observe", "report")
	if e := report.Episodes[0]; e.BothUntil.Before(e.BothFrom) || e.BothFrom.IsZero() || report.Repeated[observe.SecondOwner] != 10 {
		t.Errorf("%+v", report)
	}
	tells(t, reader.does(exitTrouble, "observe", "shadow").out, "A fence would have refused 1 of 4 transactions.", " stale ", "worker-a")
	for _, flags := range []string{"--topic others", "--group others", "--since 2100-01-01"} {
		tells(t, reader.does(exitOK, append([]string{"observe", "report"}, strings.Fields(flags)...)...).out, "Nothing was noted, or nothing that --group, --topic and --since select.")
	}
	tells(t, reader.does(exitOK, "observe", "shadow", "--group", "others").out, "Nothing was noted")
	reader.does(exitTrouble, "observe", "report", "--group", "shipping", "--topic", "orders", "--since", "-1h")
	reader.does(exitUsage, "observe")
	reader.does(exitUsage, "observe", "report", "--since", "yesterday")
	reader.does(exitUsage, "observe", "report", "--limit", "-1")
	// The report deletes nothing, whatever its role's setting; an id that is null or empty is none.
	conn, err := pgx.Connect(t.Context(), db.URL)
	must(t, err)
	t.Cleanup(func() { _ = conn.Close(t.Context()) })
	for _, sql := range []string{
		"alter role " + readerRole + " set epochfence.observe_keep = '0 seconds'",
		"select epochfence.observe('shipping', 'orders', 4, o, o + 0, 2, 'worker-b', array[null, '']) from generate_series(1, 3) o",
	} {
		_, err = conn.Exec(t.Context(), sql)
		must(t, err)
	}
	for range 2 {
		reader.reads(&report, "observe", "report")
		if report.Transactions != 5 || report.Partitions != 2 || report.Repeated[observe.Producer] != 0 {
			t.Errorf("%+v", report)
		}
	}
	consumer := &cli{t, map[string]string{"EPOCHFENCE_DATABASE": url}}
	consumer.does(exitError, "observe", "report")
	// For PostgreSQL it is a warning when a role grants what is not its own.
	if a := consumer.does(exitError, "grants", "--role", readerRole, "--as", "observer", "--execute"); !strings.Contains(a.errs, "no privileges were granted") {
		t.Errorf("granted without being the owner: %+v", a)
	}
}

func TestObserveReadsTheStatementOfSQLite(t *testing.T) {
	path := filepath.Join(t.TempDir(), "sink.db")
	c := &cli{t, map[string]string{"EPOCHFENCE_DATABASE": "file:" + path}}
	c.does(exitOK, "migrate", "up", "--execute")
	db, err := sql.Open("sqlite", "file:"+path)
	must(t, err)
	t.Cleanup(func() { _ = db.Close() })
	note := func(process string, generation, first, last int, ids any) error {
		_, err := db.ExecContext(t.Context(), observeInSQLite, "shipping", "orders", 3, first, last, generation, process, ids, 0)
		return err
	}
	for n := range 20 {
		must(t, note("worker-a", 1, 10*n, 10*n+9, nil))
	}
	must(t, note("worker-b", 2, 195, 201, `["order-1","order-2","order-1"]`))
	must(t, note("worker-b", 2, 202, 203, `["order-3","order-2"]`))
	_, err = db.ExecContext(t.Context(), observeInSQLite, "shipping", "orders", 3, 204, 205, nil, "worker-b", nil, nil) // as the function of PostgreSQL takes them
	must(t, err)
	must(t, note("worker-b", 2, 206, 205, nil)) // no message, which the function does not note
	if _, err := db.ExecContext(t.Context(), observeInSQLite, nil, "orders", 3, 0, 9, 1, "worker-a", nil, 0); err != nil {
		t.Errorf("a row that cannot be: %v", err)
	}
	tells(t, c.does(exitTrouble, "observe", "report").out, "WRONG: applied twice: 6 effects, in 23 rows.", "1 partition of shipping/orders; processes: 2", "       5  the next owner", "       1  the producer")

	_, err = db.ExecContext(t.Context(), "UPDATE epochfence_observed SET at = '2020-01-01T00:00:00.000Z' WHERE id <= 10")
	must(t, err)
	for n := range 128 {
		must(t, note("worker-b", 2, 206+n, 206+n, nil))
	}
	var expired, left int
	must(t, db.QueryRowContext(t.Context(), "SELECT count(*) FILTER (WHERE at < '2021'), count(*) FROM epochfence_observed").Scan(&expired, &left))
	if expired != 0 || left != 24+128-10 {
		t.Errorf("%d expired rows are left, of %d", expired, left)
	}
	must(t, note("worker-b", 2, 400, 401, "no JSON"))
	must(t, note("worker-b", 2, 402, 405, `["","",null,""]`))
	tells(t, c.does(exitTrouble, "observe", "report").out, "1 row with ids that are no JSON list", "       1  the producer")
	tells(t, c.does(exitTrouble, "observe", "shadow", "--limit", "0").out, "1 earlier ones are not listed")
	for n := range 20 {
		_, err := db.ExecContext(t.Context(), observeInSQLite, "shipping", fmt.Sprintf("topic-%02d", n), 3, 0, 0, -1, "worker-a", nil, 0)
		must(t, err)
	}
	tells(t, c.does(exitTrouble, "observe", "report").out, "21 partitions of shipping/orders, shipping/topic-00, ", "shipping/topic-06, …; processes: 2")
}

// observeInSQLite is the statement of docs/move-over.md.
const observeInSQLite = `INSERT OR IGNORE INTO epochfence_observed
	(group_name, topic, number, first_offset, last_offset, generation, process, ids, caught)
VALUES (?, ?, ?, ?, ?, coalesce(?, -1), ?, ?, coalesce(?, 0))`

func TestObserveIsNotForMariaDB(t *testing.T) {
	m := &mariadb{sqlDatabase: &sqlDatabase{sink: sqlsink.Options{}}}
	if _, err := m.grant("app", observer); err == nil || exitCode(err) != exitUsage {
		t.Errorf("grants: %v", err)
	}
}
