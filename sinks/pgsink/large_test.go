package pgsink_test

import (
	"os"
	"testing"
	"time"

	"github.com/epochfence/epochfence/operate"
)

// What epochfence list reads, over 10,000 partitions and an audit log of a million entries.
func TestAListOfManyPartitionsReadsFewPages(t *testing.T) {
	if os.Getenv("EPOCHFENCE_LONG") == "" {
		t.Skip("takes half a minute; set EPOCHFENCE_LONG=1")
	}
	t.Parallel()
	r := newRig(t)
	r.sql(`insert into epochfence.fence (group_name, topic, partition, log_id, lease_source, epoch, claim_id, next_offset, claimed_at, advanced_at)
			select 'billing', 'orders-' || p / 100, p % 100, 'log', 'source', 1, gen_random_uuid(), 7, clock_timestamp(), clock_timestamp() from generate_series(0, 9999) p;
		alter table epochfence.fence_ledger disable trigger all;
		insert into epochfence.fence_ledger (kind, name, group_name, topic, partition, epoch, message_offset, state, cause, operator, body)
			select 'entry', gen_random_uuid()::text, 'billing', 'orders-' || n % 10000 / 100, n % 100, 1, 7,
				case when n % 100000 = 0 then 'halt' else 'claim' end, '', case when n % 1000 = 0 then 'anna' else '' end, '{"to": 7}'
			from generate_series(1, 1000000) n;
		insert into epochfence.fence_ledger (kind, name, group_name, topic, partition, epoch, message_offset, state, cause, operator, body, message_value)
			select 'dead-letter', '', 'billing', 'orders-' || n % 100, n % 7, 1, n, '', 'no such customer', '', '{}', repeat('x', 1000)::bytea from generate_series(1, 1000) n;
		alter table epochfence.fence_ledger enable trigger all;
		analyze epochfence.fence, epochfence.fence_ledger`)
	op, conn := r.operator(t), r.db.Superuser(t)
	for what, sql := range map[string]string{ // the first query of a connection also reads the catalog
		"the fences":   "select from epochfence.list_fences(null, null, null, false)",
		"the halts":    "select from epochfence.rows('entry', null, null, null, null, null, null, array['halt', 'recovery'], null, null, null, true, 200)",
		"the newest":   "select from epochfence.rows('entry', null, null, null, null, null, null, null, null, null, null, true, 100)",
		"of one":       "select from epochfence.rows('entry', null, null, null, 'billing', 'orders-7', 7, null, null, null, null, true, 100)",
		"the letters":  "select from epochfence.rows('dead-letter', null, null, null, null, null, null, null, 0, null, null, false, 100)",
		"the alive":    "select from epochfence.rows('process', null, null, null, null, null, null, null, null, null, null, false, null)",
		"the requests": "select from epochfence.requests(array['billing'], array['orders-7'], array[7], 8, 32)",
	} {
		pages := explain(t, conn, sql)
		if t.Logf("%s: %d pages", what, pages); pages > 3000 {
			t.Errorf("%s: %d pages of about 30,000; want no more than 3,000", what, pages)
		}
	}
	began := time.Now()
	ps, err := op.Partitions(t.Context(), operate.Filter{})
	must(t, err)
	listed := time.Since(began)
	halts, err := operate.Halts(t.Context(), op, ps)
	must(t, err)
	t.Logf("%d partitions in %v, %d halts in %v", len(ps), listed, len(halts), time.Since(began)-listed)
}
