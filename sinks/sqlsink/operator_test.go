package sqlsink_test

import (
	"database/sql"
	"strings"
	"testing"

	"github.com/epochfence/epochfence/sinks/sqlsink"
)

func TestTheDecisionLogIsPrunedOnTheWay(t *testing.T) {
	db := open(t, newFile(t))
	s := newSink(t, db, sqlsink.Options{})
	fill := func(n int, at, operator string) {
		mustExec(t, db, `WITH RECURSIVE c (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c WHERE n < ?)
			INSERT INTO epochfence_decision (decided_at, kind, group_name, topic, number, epoch, claim_id, owner, from_offset, to_offset, reason, operator, trace_id)
			SELECT strftime('%Y-%m-%dT%H:%M:%fZ', 'now', ?), 'stale', 'g', 't', 0, 1, zeroblob(16), '', 0, 0, '', ?, '' FROM c`, n, at, operator)
	}
	fill(6, "-91 days", "")
	fill(3, "-91 days", "anna")
	fill(5, "-89 days", "")
	for generation := range int64(3) {
		claim(t, s, generation+1)
	}
	if old, young, claims := count(t, db, `decided_at < strftime('%Y-%m-%dT%H:%M:%fZ', 'now', '-90 days')`), count(t, db, `kind = 'stale'`), count(t, db, `kind = 'claim'`); old != 0 || young != 5 || claims != 3 {
		t.Errorf("after three claims %d old, %d young entries and %d claims", old, young, claims)
	}
	fill(1, "-1 days", "anna")
	mustExec(t, db, `UPDATE sqlite_sequence SET seq = 1000000 WHERE name = 'epochfence_decision'`)
	for generation, left := range []int{4, 0} {
		claim(t, s, int64(generation)+10)
		if many, people := count(t, db, `operator = '' AND id < 1000`), count(t, db, `operator = 'anna'`); many != left || people != 1 {
			t.Errorf("after claim %d %d entries are left that are too many, want %d, and %d of people", generation, many, left, people)
		}
	}
}

func TestWhatHungIsFoundHoweverLongTheDecisionLogIs(t *testing.T) {
	db := open(t, newFile(t))
	newSink(t, db, sqlsink.Options{})
	var id, parent, unused int
	var plan string
	if err := db.QueryRow(`EXPLAIN QUERY PLAN `+sqlsink.HangsQuery(), "g", "t", 0, 100).Scan(&id, &parent, &unused, &plan); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(plan, "USING INDEX epochfence_decision_hangs (group_name=? AND topic=? AND number=?)") {
		t.Errorf("SQLite reads it so: %s", plan)
	}
}

func count(t *testing.T, db *sql.DB, where string) (n int) {
	t.Helper()
	if err := db.QueryRow(`SELECT COUNT(*) FROM epochfence_decision WHERE ` + where).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}
