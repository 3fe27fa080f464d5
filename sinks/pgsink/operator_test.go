package pgsink_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/operate"
	"github.com/epochfence/epochfence/sinks/pgsink"
)

func evict(t testing.TB, op operate.Operator, p epoch.Partition) (epoch.Fence, error) {
	t.Helper()
	seen, err := op.Partition(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	return op.Act(t.Context(), operate.NewAct(operate.ActEvict, seen.Fence, "anna", "it hangs"))
}

func TestEachKindOfRoleMayDoWhatItIsFor(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	reader, readerURL := r.db.Role(t)
	r.grant(pgsink.GrantReaderSQL, reader)
	s := r.open()
	seed(t, s, orders)
	f := claim(t, s, orders, 5)
	err := s.Commit(t.Context(), advance(f, 1), epoch.TxOptions{}, func(ctx context.Context, tx pgsink.Tx) error {
		return s.DeadLetter(ctx, tx, epoch.Message{Partition: orders, Value: []byte("secret")}, f.Epoch, errors.New("poison"))
	})
	if err != nil {
		t.Fatal(err)
	}
	op, looks := r.operatorAt(t, r.operatorsURL), r.operatorAt(t, readerURL)
	letters := func(op *pgsink.Operator) ([]operate.DeadLetter, error) {
		return op.DeadLetters(t.Context(), operate.DeadLetterQuery{})
	}
	for _, op := range []*pgsink.Operator{op, looks} {
		ps, err := op.Partitions(t.Context(), operate.Filter{})
		ds, errLog := op.History(t.Context(), operate.HistoryQuery{})
		ls, errLetters := letters(op)
		if err != nil || errLog != nil || errLetters != nil || len(ps) != 1 || len(ds) != 1 || len(ls) != 1 || ds[0].Role != r.role {
			t.Errorf("%v %v, %+v %v, %v %v", ps, err, ds, errLog, ls, errLetters)
		}
	}
	ls, _ := letters(op)
	discard := operate.DeadLetterAct{Kind: operate.Discard, Seen: ls[0], By: "anna", Reason: "test"}
	if l, err := op.DeadLetter(t.Context(), ls[0].ID); err != nil || string(l.Message.Value) != "secret" {
		t.Errorf("an operator is shown %+v, %v", l, err)
	}
	_, errAct := evict(t, looks, orders)
	_, errShow := looks.DeadLetter(t.Context(), ls[0].ID)
	_, errDo := looks.DoDeadLetter(t.Context(), discard)
	for name, err := range map[string]error{"acts": errAct, "is shown a message": errShow, "discards": errDo} {
		if !errors.Is(err, pgsink.ErrPermission) {
			t.Errorf("a reader %s: %v", name, err)
		}
	}
	if _, err := pgsink.OpenOperator(t.Context(), r.pool(), pgsink.Options{Logger: slog.New(slog.DiscardHandler)}); !errors.Is(err, pgsink.ErrPermission) ||
		!strings.Contains(err.Error(), "--as operator") || strings.Contains(err.Error(), "--as application") {
		t.Errorf("the application opened what is for people: %v", err)
	}
	if _, err := pgsink.Open(t.Context(), newPool(t, readerURL), pgsink.Options{}); !errors.Is(err, pgsink.ErrPermission) {
		t.Errorf("a reader opened a sink: %v", err)
	}
	app := r.pool()
	for _, sql := range []string{
		"select epochfence.act('evict', '', '', 0, 1, 0, '" + f.Claim.String() + "', 0, gen_random_uuid(), 'a', 'b', '', null::bigint, null, false, null::text, null)",
		"select epochfence.put('entry', 0, 0, false, '', '', '', 0, 1, 0, 'rewind', 'because', 'anna', '{}', null, null, null)",
		"select epochfence.act_on_row('dead-letter', 1, 0, true, '', '', '', 0, '', '', '', '', 0, 0, 'discard', 'because', 'anna', '{}')", "select epochfence.contents('outbox', '{1}')",
		"select epochfence.swap_claim('', '', 0, 1, 0, gen_random_uuid(), '', '', 1, 0, '', gen_random_uuid(), null, null)",
		"insert into epochfence.fence_ledger (kind) values ('entry')", "select * from epochfence.fence_ledger", "update epochfence.fence set mode = ''",
	} {
		if _, err := app.Exec(t.Context(), sql); err == nil || !strings.Contains(err.Error(), "permission denied") {
			t.Errorf("the application: %s: %v", sql, err)
		}
	}
	if ds, err := op.History(t.Context(), operate.HistoryQuery{}); err != nil || len(ds) != 1 {
		t.Errorf("the audit log is %+v, %v", ds, err)
	}
	if _, err := op.DoDeadLetter(t.Context(), discard); err != nil {
		t.Error(err)
	}
}

// An operator's role may call the function without package operate.
func TestPostgreSQLRefusesARunThatIsNotOfAJobAtItsPosition(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s, op, operator := r.open(), r.operator(t), newPool(t, r.operatorsURL)
	nightly := epoch.Partition{Group: "billing", Topic: "nightly"}
	job := epoch.Origin{Partition: nightly, Log: operate.JobLog, Source: "epochfence/lease"}
	if err := s.Seed(t.Context(), []epoch.Start{{Origin: job, Next: epoch.Position{Offset: 5_000_000, Mark: epoch.NoMark}}}); err != nil {
		t.Fatal(err)
	}
	seed(t, s, orders)
	for _, p := range []epoch.Partition{nightly, orders} {
		seen, err := op.Partition(t.Context(), p)
		if err == nil {
			_, err = s.Claim(t.Context(), seen.Fence, epoch.NewClaim(epoch.Lease{Origin: seen.Origin, Generation: 1, Owner: "pod-1"}))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		what      string
		of        epoch.Partition
		to        epoch.Offset
		mark      epoch.Mark
		beginning bool
		want      string
	}{
		{"a partition that is no job", orders, 0, 1, false, "XF013"},
		{"before the position", nightly, 4_999_999, 1, false, "XF013"},
		{"a second after the position", nightly, 6_000_000, 1, false, "XF013"},
		{"without a mark", nightly, 5_000_000, epoch.NoMark, false, "XF013"},
		{"at the beginning", nightly, 5_000_000, 1, true, "XF013"},
		{"at the position", nightly, 5_000_000, 1, false, ""},
	} {
		seen, err := op.Partition(t.Context(), c.of)
		if err != nil {
			t.Fatal(err)
		}
		_, err = operator.Exec(t.Context(), "select epochfence.act('run', $1, $2, $3, 1000, $4, $5, $6, gen_random_uuid(), 'anna', 'now', '', $7::bigint, $8, $9, null::text, null)",
			c.of.Group, c.of.Topic, c.of.Number, int64(seen.Epoch), seen.Claim.String(), int64(seen.Next), int64(c.to), int64(c.mark), c.beginning)
		var pg *pgconn.PgError
		if errors.As(err, &pg); (err == nil) != (c.want == "") || err != nil && (pg == nil || pg.Code != c.want) {
			t.Errorf("%s: %v", c.what, err)
		}
		now, err := op.Partition(t.Context(), c.of)
		if err != nil || (now.Fence == seen.Fence) != (c.want != "") {
			t.Errorf("%s: the fence is %+v, %v", c.what, now.Fence, err)
		}
	}
}

func TestAnActEndsATransactionThatIsFrozenWithTheFence(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := r.open()
	seed(t, s, orders)
	f := claim(t, s, orders, 5)
	freeze(t, r.appURL, f, time.Minute)

	stranger, strangerURL := r.db.Role(t)
	r.grant(pgsink.GrantOperatorSQL, stranger)
	short, err := pgsink.OpenOperator(t.Context(), newPool(t, strangerURL), pgsink.Options{ClaimTimeout: 300 * time.Millisecond, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := evict(t, short, orders); !errors.Is(err, epoch.ErrTransient) || !strings.Contains(err.Error(), "make it a member of the application's role") {
		t.Errorf("a role that may end nothing: %v", err)
	}
	began := time.Now()
	got, err := evict(t, r.operator(t), orders)
	if err != nil || got.Next != 0 || got.Epoch != 6 {
		t.Errorf("%+v, %v", got, err)
	}
	if took := time.Since(began); took > takeoverBound {
		t.Errorf("it took %v", took)
	}
	wantStock(r, 100)
}

func TestAnActThatIsRefusedLeavesTheOwnersTransactionAlone(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s, op := r.open(), r.operator(t)
	seed(t, s, orders)
	f := claim(t, s, orders, 5)
	late := operate.NewAct(operate.ActRewind, f, "anna", "test")
	late.To = &epoch.Position{Offset: 0, Mark: epoch.NoMark}
	if err := s.Commit(t.Context(), advance(f, 1), epoch.TxOptions{}, takingStock); err != nil {
		t.Fatal(err)
	}
	f.Next++
	err := s.Commit(t.Context(), advance(f, 1), epoch.TxOptions{}, func(ctx context.Context, tx pgsink.Tx) error {
		if err := takingStock(ctx, tx); err != nil { // begins it
			return err
		}
		if _, err := op.Act(ctx, late); !errors.Is(err, epoch.ErrMoved) {
			t.Errorf("a rewind seen before the last advance: %v", err)
		}
		return nil
	})
	if err != nil {
		t.Errorf("a refused act has ended the transaction: %v", err)
	}
	wantStock(r, 98)
}

func TestTheDecisionLogIsPrunedOnTheWay(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := r.open()
	seed(t, s, orders)
	fill := func(n int, columns, values string) {
		r.sql(fmt.Sprintf(`insert into epochfence.fence_ledger (kind, name, group_name, topic, partition, epoch, message_offset, state, cause, body, operator%s)
			select 'entry', '', 'g', 't', 0, 1, 0, 'stale', '', '{}', %s from generate_series(1, %d) n`, columns, values, n))
	}
	count := func(where string) (n int) {
		if err := r.admin.QueryRow(t.Context(), "select count(*) from epochfence.fence_ledger where "+where).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	fill(6, ", written_at", "'', now() - interval '91 days'")
	fill(3, ", written_at", "'anna', now() - interval '91 days'")
	fill(5, ", written_at", "'', now() - interval '89 days'")
	generation := int64(0)
	for range 16 { // of which one prunes
		generation++
		claim(t, s, orders, generation)
	}
	if old, young, claims := count("written_at < now() - interval '90 days'"), count("state = 'stale' and written_at > now() - interval '90 days'"), count("state = 'claim'"); old != 0 || young != 5 || claims != 16 {
		t.Errorf("after 16 claims %d old, %d young entries and %d claims", old, young, claims)
	}

	// By number, which is not the id, because that numbers dead letters, too: those of people stay.
	fill(1, "", "'anna'")
	r.sql("alter table epochfence.fence_ledger alter column id restart with 1000000")
	for range 16 {
		generation++
		claim(t, s, orders, generation)
	}
	if n := count("state = 'stale' and operator = ''"); n != 5 {
		t.Errorf("after many dead letters %d of 5 entries are left", n)
	}
	r.sql("alter sequence epochfence.fence_ledger_entry restart 1000000")
	generation++
	claim(t, s, orders, generation)
	if gone, stays := count("operator = '' and id < 1000"), count("operator = 'anna'"); gone != 0 || stays != 1 {
		t.Errorf("after a claim %d entries are left that are too many, %d of people", gone, stays)
	}
}

// Claims of several partitions, made in whatever order in one transaction, must not wait
// for each other because of the log.
func TestPruningTheDecisionLogHoldsNoOtherClaimUp(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := r.open()
	other := epoch.Partition{Group: "other", Topic: "orders"}
	seed(t, s, orders)
	seed(t, s, other)
	r.sql(`insert into epochfence.fence_ledger (kind, name, group_name, topic, partition, epoch, message_offset, state, cause, body, operator, written_at)
		select 'entry', '', 'g', 't', 0, 1, 0, 'stale', '', '{}', '', now() - interval '91 days' from generate_series(1, 20) n`)
	r.sql("alter sequence epochfence.fence_ledger_entry increment by 16 restart 1600") // each entry prunes
	tx, err := r.reader.Begin(t.Context())
	if err == nil { // a claim that has pruned, and is not committed yet
		_, err = tx.Exec(t.Context(), "select epochfence.claim('billing', 'orders', 3, 1000, 0, '00000000-0000-0000-0000-000000000000', 'log', 'source', 5, 0, 'a', gen_random_uuid(), null::bigint, null, '')")
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := tryClaim(ctx, s, other, 5); err != nil {
		t.Errorf("a claim waits for another one's log: %v", err)
	}
}

func TestManyClaimsAtATimeAreEachInTheDecisionLog(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := r.open(func(o *pgsink.Options) {})
	const many = 200
	var ps []epoch.Partition
	for n := range int32(many) {
		ps = append(ps, epoch.Partition{Group: "many", Topic: "orders", Number: n})
	}
	seed(t, s, ps...)
	var wg sync.WaitGroup
	for _, p := range ps {
		wg.Go(func() {
			if _, err := tryClaim(t.Context(), s, p, 5); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	ds, err := r.operator(t).History(t.Context(), operate.HistoryQuery{Limit: 1000})
	seen := map[epoch.Partition]int{}
	for _, d := range ds {
		seen[d.Partition]++
	}
	if err != nil || len(ds) != many || len(seen) != many {
		t.Errorf("%d entries of %d partitions, %v", len(ds), len(seen), err)
	}
}

func TestLookingForRequestsReadsNoDeadLettersWhereNoneIsRequested(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.sql(`insert into epochfence.fence_ledger (kind, name, group_name, topic, partition, epoch, message_offset, state, cause, body, operator)
		select 'dead-letter', '', 'billing', 'orders', n % 10, 1, n, '', 'poison', '{}', '' from generate_series(1, 50000) n`)
	r.sql("vacuum analyze epochfence.fence_ledger")
	var ps []epoch.Partition
	for n := range int32(10) {
		ps = append(ps, epoch.Partition{Group: "billing", Topic: "orders", Number: n})
	}
	rows := func() (n int64) {
		r.sql("select pg_stat_clear_snapshot()")
		err := r.admin.QueryRow(t.Context(), `select sum(seq_tup_read + idx_tup_fetch) from pg_stat_user_tables
			where schemaname = 'epochfence' and relname = 'fence_ledger'`).Scan(&n)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	pool := r.pool(func(c *pgxpool.Config) { c.MaxConns = 1 })
	s := r.openOn(pool)
	before := rows()
	for range 20 {
		if _, found, err := s.Requests(t.Context(), ps); err != nil || len(found) > 0 {
			t.Fatalf("%+v, %v", found, err)
		}
	}
	pool.Close() // which has the server count what its connection did
	r.eventually("the connection has ended", "select count(*) = 0 from pg_stat_activity where usename = '"+r.role+"'")
	if read := rows() - before; read > 100 {
		t.Errorf("20 looks read %d rows", read)
	}
}

// TestAListThatLosesItsConnectionIsReadAgainFromItsBeginning, and has nothing twice.
func TestAListThatLosesItsConnectionIsReadAgainFromItsBeginning(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := r.open()
	seed(t, s, orders)
	claim(t, s, orders, 5)
	var w wire
	op := r.operatorAt(t, r.operatorsURL, w.one)
	for _, c := range []cut{cutNothing, cutWithin} { // the first prepares
		w.arm(c)
		found, err := op.Partitions(t.Context(), operate.Filter{})
		if err != nil || len(found) != 1 {
			t.Errorf("cut %d: %d partitions, %v; want one", c, len(found), err)
		}
	}
}
