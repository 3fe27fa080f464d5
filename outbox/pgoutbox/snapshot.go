package pgoutbox

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/sql/pgschema"
	"github.com/epochfence/epochfence/outbox"
)

// This file decides which entries a scan may have missed: those of transactions that committed
// after it, with lower ids. store.go has the statements that use it.

// snapshot identifies the transactions that had not ended when entries were read. A cursor's Seen
// is its text, in the format of PostgreSQL's pg_snapshot.
type snapshot struct {
	end  int64   // this and all later transactions
	open []int64 // these earlier transactions
}

// parseSnapshot parses a cursor's Seen. An empty text is a snapshot after all transactions: nothing
// was read yet, so no transaction can be late.
func parseSnapshot(text string) (snapshot, error) {
	s := snapshot{end: math.MaxInt64, open: []int64{}}
	if text == "" {
		return s, nil
	}
	bad := fmt.Errorf("pgoutbox: %q is no cursor of this store", text)
	parts := strings.Split(text, ":")
	if len(parts) != 3 {
		return s, bad
	}
	var err error
	if s.end, err = strconv.ParseInt(parts[1], 10, 64); err != nil {
		return s, bad
	}
	for x := range strings.SplitSeq(parts[2], ",") {
		if x == "" {
			continue
		}
		id, err := strconv.ParseInt(x, 10, 64)
		if err != nil {
			return s, bad
		}
		s.open = append(s.open, id)
	}
	return s, nil
}

// newest is the end of the transactions that the statement sees. An entry with a higher added_by
// was added by the statement's own transaction, or on another server from which it was restored.
// Such a restored entry is treated as an old one.
const newest = `(select pg_snapshot_xmax(pg_current_snapshot())::text::bigint)`

// lateStep is the number of entries that one step of committedLate reads.
const lateStep = 64

// committedLate returns the expressions of a WITH RECURSIVE for late: the lowest id, up to $4, of
// an entry whose transaction had not ended when the entries up to $4 were read. These transactions
// are those in $6 and all from $5 on. It reads the index on added_by in small steps, whatever
// PostgreSQL's statistics say.
func committedLate(entries string) string {
	return `
			began (looked, low, added_by) as (
				select ` + strconv.Itoa(lateStep) + `, null::bigint, $5::bigint - 1
			union all
				select step.looked, least(began.low, step.low), step.added_by from began, lateral (
					select count(*)::integer as looked, min(e.id) filter (where e.id <= $4) as low, max(e.added_by) as added_by from (
						select group_name, topic, partition, added_by, id from ` + entries + ` where (group_name, topic, partition, added_by) > ($1, $2, $3, began.added_by)
						order by group_name, topic, partition, added_by, id limit ` + strconv.Itoa(lateStep) + `
					) as e where (e.group_name, e.topic, e.partition) = ($1, $2, $3) and e.added_by < ` + newest + `
				) as step where began.looked = ` + strconv.Itoa(lateStep) + `
			),
			late (id) as (
				select least((select min(low) from began), (
					select min(e.id) from unnest($6::bigint[]) as open (added_by), lateral (
						select * from ` + entries + ` as e where (e.group_name, e.topic, e.partition, e.added_by, e.id) > ($1, $2, $3, open.added_by, 0)
						order by e.group_name, e.topic, e.partition, e.added_by, e.id limit 1
					) as e where (e.group_name, e.topic, e.partition, e.added_by) = ($1, $2, $3, open.added_by) and e.id <= $4
				))
			)`
}

// seenRow is a row of a scan, with the snapshot of the scan. A scan without entries has one row,
// with there false.
type seenRow struct {
	outbox.Row
	there bool
	seen  string
}

func readSeen(row pgx.CollectableRow) (r seenRow, err error) {
	var id, offset *int64
	var key, scope, idempotencyKey, method, url, header *string
	err = row.Scan(&r.seen, &id, &offset, &key, &scope, &idempotencyKey, &method, &url, &header, (*pgschema.Bytea)(&r.Body))
	if err != nil || id == nil {
		return r, err
	}
	r.ID, r.Offset, r.Key, r.Scope, r.IdempotencyKey, r.Method, r.URL, r.there = *id, epoch.Offset(*offset), *key, *scope, *idempotencyKey, *method, *url, true
	r.Row, err = withHeader(r.Row, *header, nil)
	return r, err
}
