package sqloutbox

import (
	"database/sql"
	"path/filepath"
	"strings"
	"testing"

	_ "modernc.org/sqlite"

	"github.com/epochfence/epochfence/sinks/sqlsink"
)

// SQLite plans by what the last ANALYZE has seen, which may date from when there was
// no backlog, or another one.
func TestEachQueryIsDrivenByTheIndexMadeForIt(t *testing.T) {
	const backlog = `WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1000)
		INSERT INTO epochfence_outbox_entry (group_name, topic, number, order_key, scope, idempotency_key, method, url, header, body)
		SELECT 'billing', 'orders', `
	ours, others := backlog+`3, 'key ' || i % 50, 's', i, 'POST', '', '{}', x'' FROM n`, backlog+`i, '', 's', i, 'POST', '', '{}', x'' FROM n`
	for name, history := range map[string][]string{
		"never analyzed":                {ours},
		"analyzed when empty":           {`ANALYZE`, ours},
		"analyzed with our backlog":     {ours, `ANALYZE`},
		"analyzed with that of others":  {others, `ANALYZE`, ours},
		"analyzed with that of all":     {others, ours, `ANALYZE`},
		"analyzed with a single entry":  {ours, `DELETE FROM epochfence_outbox_entry WHERE id > 1`, `ANALYZE`, ours},
		"analyzed when ours was at end": {others, `ANALYZE`, ours, `DELETE FROM epochfence_outbox_entry WHERE id < 900`},
	} {
		t.Run(name, func(t *testing.T) {
			db, err := sql.Open("sqlite", "file:"+filepath.Join(t.TempDir(), "outbox.db")+"?_pragma=journal_mode(WAL)&_pragma=synchronous(OFF)")
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = db.Close() }()
			if err := sqlsink.Migrate(t.Context(), db, sqlsink.SQLite, sqlsink.Options{}); err != nil {
				t.Fatal(err)
			}
			s, err := Open[*sql.Tx](t.Context(), db, SQLite, Options{})
			if err != nil {
				t.Fatal(err)
			}
			for _, step := range history {
				if _, err := db.ExecContext(t.Context(), step); err != nil {
					t.Fatal(err)
				}
			}
			const byID = "USING INTEGER PRIMARY KEY (rowid=?)"
			for _, c := range []struct {
				query string
				args  []any
				want  string
			}{
				{s.scan, []any{"billing", "orders", 3, 500, 64}, "entry_partition (group_name=? AND topic=? AND number=? AND "},
				{s.next, []any{"billing", "orders", 3, "key 7", 500}, "entry_key (group_name=? AND topic=? AND number=? AND order_key=? AND "},
				{s.count, []any{"billing", "orders", 3, 64}, "entry_partition (group_name=? AND topic=? AND number=?)"},
				{s.load, []any{"billing", "orders", 3, 500}, byID},
				{s.remove, []any{"billing", "orders", 3, 500}, byID},
			} {
				plan := explain(t, db, c.query, c.args...)
				if !strings.Contains(plan, c.want) {
					t.Errorf("%s\nis planned as %q, want %q", c.query, plan, c.want)
				}
			}
		})
	}
}

// explain returns the plan of a query, its steps joined.
func explain(t *testing.T, db *sql.DB, query string, args ...any) string {
	rows, err := db.QueryContext(t.Context(), `EXPLAIN QUERY PLAN `+query, args...)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = rows.Close() }()
	var steps []string
	for rows.Next() {
		var id, parent, unused int
		var step string
		if err := rows.Scan(&id, &parent, &unused, &step); err != nil {
			t.Fatal(err)
		}
		steps = append(steps, step)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return strings.Join(steps, "; ")
}
