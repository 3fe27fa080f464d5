package sqlsink_test

import (
	"database/sql"
	"strings"
	"testing"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/operate"
	"github.com/epochfence/epochfence/sinks/sqlsink"
)

func TestTheDecisionLogIsPrunedOnTheWay(t *testing.T) {
	db := open(t, newFile(t))
	s := newSink(t, db, sqlsink.Options{})
	fill := func(n int, at, operator string) {
		mustExec(t, db, `WITH RECURSIVE c (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c WHERE n < ?)
			INSERT INTO epochfence_ledger (written_at, changed_at, kind, name, group_name, topic, number, epoch, message_offset, state, cause, operator, role, body)
			SELECT strftime('%Y-%m-%dT%H:%M:%fZ', 'now', ?), '', 'entry', '', 'g', 't', 0, 1, 0, 'stale', '', ?, '', '{}' FROM c`, n, at, operator)
	}
	fill(6, "-91 days", "")
	fill(3, "-91 days", "anna")
	fill(5, "-89 days", "")
	for generation := range int64(3) {
		claim(t, s, generation+1)
	}
	if old, young, claims := count(t, db, `written_at < strftime('%Y-%m-%dT%H:%M:%fZ', 'now', '-90 days')`), count(t, db, `state = 'stale'`), count(t, db, `state = 'claim'`); old != 0 || young != 5 || claims != 3 {
		t.Errorf("after three claims %d old, %d young entries and %d claims", old, young, claims)
	}
	fill(1, "-1 days", "anna")
	mustExec(t, db, `UPDATE sqlite_sequence SET seq = 1000000 WHERE name = 'epochfence_ledger'`) // as many dead letters do
	claim(t, s, 9)
	if many := count(t, db, `operator = '' AND id < 1000`); many != 8 {
		t.Errorf("after many dead letters %d of 8 entries are left", many)
	}
	mustExec(t, db, `UPDATE epochfence_ledger SET revision = 1000000 WHERE id = (SELECT max(id) FROM epochfence_ledger)`)
	for generation, left := range []int{4, 0} {
		claim(t, s, int64(generation)+10)
		if many, people := count(t, db, `operator = '' AND id < 1000`), count(t, db, `operator = 'anna'`); many != left || people != 1 {
			t.Errorf("after claim %d %d entries are left that are too many, want %d, and %d of people", generation, many, left, people)
		}
	}
}

func TestWhatHungIsFoundHoweverLongTheDecisionLogIs(t *testing.T) {
	db := open(t, newFile(t))
	s := newSink(t, db, sqlsink.Options{})
	var id, parent, unused int
	var plan string
	p := epoch.Partition{Group: "g", Topic: "t"}
	query, args := s.Selects(operate.RowQuery{Kind: operate.KindEntry, Partition: &p, States: []string{"hang", "rewind"}, Newest: true, Limit: 100})
	if err := db.QueryRow(`EXPLAIN QUERY PLAN `+query, args...).Scan(&id, &parent, &unused, &plan); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(plan, "USING INDEX epochfence_ledger_state (kind=? AND state=? AND group_name=? AND topic=? AND number=?)") {
		t.Errorf("SQLite reads it so: %s", plan)
	}
}

func TestAPollForRequestsReadsAnIndexOfActs(t *testing.T) {
	db := open(t, newFile(t))
	rows, err := db.Query(`EXPLAIN QUERY PLAN ` + newSink(t, db, sqlsink.Options{}).Acts())
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var id, parent, unused int
		var plan string
		if err := rows.Scan(&id, &parent, &unused, &plan); err != nil || !strings.Contains(plan, "epochfence_ledger_state (kind=? AND state=?)") {
			t.Errorf("SQLite reads it so: %s, %v", plan, err)
		}
	}
}

func count(t *testing.T, db *sql.DB, where string) (n int) {
	t.Helper()
	if err := db.QueryRow(`SELECT COUNT(*) FROM epochfence_ledger WHERE ` + where).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}
