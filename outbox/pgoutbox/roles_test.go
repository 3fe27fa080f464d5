package pgoutbox_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"reflect"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/servers/pgtest"
	"github.com/epochfence/epochfence/operate"
	"github.com/epochfence/epochfence/outbox"
	"github.com/epochfence/epochfence/outbox/pgoutbox"
	"github.com/epochfence/epochfence/sinks/pgsink"
)

func TestTheRoleOfAnApplicationMayDoAllThatAStoreDoesAndNoMore(t *testing.T) {
	t.Parallel()
	d := pgtest.Start(t)
	admin := d.Superuser(t)
	const schema = `odd "name"`
	of, o := pgsink.Options{Schema: schema}, pgoutbox.Options{Schema: schema}
	if err := pgsink.Migrate(t.Context(), admin, of); err != nil {
		t.Fatal(err)
	}
	role, url := d.Role(t)
	app, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = app.Close(context.WithoutCancel(t.Context())) }()
	_, err = pgoutbox.Open[pgx.Tx](t.Context(), app, o)
	wantError(t, err, "permission denied")
	if err := pgsink.Grant(t.Context(), admin, role, of); err != nil {
		t.Fatal(err)
	}
	store, err := pgoutbox.Open[pgx.Tx](t.Context(), app, o)
	if err != nil {
		t.Fatal(err)
	}
	err = pgx.BeginFunc(t.Context(), app, func(tx pgx.Tx) error {
		if err := store.Add(t.Context(), tx, epoch.Message{Partition: ours, Offset: 7}, outbox.Entry{Key: "k", URL: "http://host/"}); err != nil {
			return err
		}
		rows, at, err := store.Scan(t.Context(), tx, ours, outbox.Cursor{}, 10)
		if err != nil || len(rows) != 1 {
			return fmt.Errorf("%d rows: %w", len(rows), err)
		}
		ids := []int64{rows[0].ID}
		_, errLoad := store.Load(t.Context(), tx, ours, ids)
		_, errNext := store.Next(t.Context(), tx, ours, at, []outbox.Place{{Key: "k"}})
		_, _, errCount := store.Count(t.Context(), tx, ours, 10)
		_, errRetries := store.Retries(t.Context(), tx, ours, ids)
		_, errDelete := store.Delete(t.Context(), tx, ours, ids)
		return errors.Join(errLoad, errNext, errCount, errRetries, errDelete)
	})
	if err != nil {
		t.Error(err)
	}
	for _, sql := range []string{
		`update outbox_entry set url = ''`, `truncate outbox_entry`, `select from outbox_row`, `select nextval('outbox_entry_id_seq')`,
		`delete from migration`, `select contents('outbox', '{1}')`, `select outbox_follow()`,
		`select act_on_row('outbox', 1, 0, true, '', '', '', 0, '', '', '', '', 0, 0, 'outbox-discard', 'because', 'anna', '{}')`,
	} {
		wantDenied(t, app, `set search_path = "odd ""name"""; `+sql)
	}
	_, err = app.Exec(t.Context(), `select "odd ""name""".write_row('entry', 0, 0, false, '', '', '', 0, 1, 0, 'outbox-discard', 'because', 'anna', '{}', null, null, null)`)
	if pg, ok := errors.AsType[*pgconn.PgError](err); !ok || pg.Code != "XF013" {
		t.Errorf("an application writes an operator's action into the audit log: %v", err)
	}
}

func wantDenied(t *testing.T, db interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}, sql string) {
	t.Helper()
	_, err := db.Exec(t.Context(), sql)
	if pg, ok := errors.AsType[*pgconn.PgError](err); !ok || pg.Code != "42501" {
		t.Errorf("%s: err = %v; want that permission is denied", sql, err)
	}
}

// person is a role that a GrantSQL function has given privileges.
type person struct {
	role string
	pool *pgxpool.Pool
	op   *pgsink.Operator
}

func newPerson(t *testing.T, d *pgtest.Database, grantSQL func(string, pgsink.Options) (string, error)) (p person) {
	t.Helper()
	var url string
	p.role, url = d.Role(t)
	grant, err := grantSQL(p.role, pgsink.Options{})
	if err == nil {
		_, err = d.Superuser(t).Exec(t.Context(), grant)
	}
	if err == nil {
		p.pool, err = pgxpool.New(t.Context(), url)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.pool.Close)
	if p.op, err = pgsink.OpenOperator(t.Context(), p.pool, pgsink.Options{Logger: slog.New(slog.DiscardHandler)}); err != nil {
		t.Fatal(err)
	}
	return p
}

// newEntries migrates, and adds entries.
func newEntries(t *testing.T, d *pgtest.Database, n int) {
	t.Helper()
	admin := d.Superuser(t)
	if err := pgsink.Migrate(t.Context(), admin, pgsink.Options{}); err != nil {
		t.Fatal(err)
	}
	store, err := pgoutbox.Open[pgx.Tx](t.Context(), admin, pgoutbox.Options{})
	if err != nil {
		t.Fatal(err)
	}
	err = pgx.BeginFunc(t.Context(), admin, func(tx pgx.Tx) (err error) {
		for i := range n {
			err = errors.Join(err, store.Add(t.Context(), tx, epoch.Message{Partition: ours, Offset: 7}, outbox.Entry{
				Key: "k", Scope: "s", IdempotencyKey: fmt.Sprint("key ", i), Method: "POST", URL: "http://host/secret", Header: http.Header{"Secret": {"secret"}}, Body: []byte("secret"),
			}))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// wantNoPrivilege wants that a role has no privilege on the table and the view of entries, nor on a column.
func wantNoPrivilege(t *testing.T, db *pgx.Conn, role string) {
	t.Helper()
	var has []string
	err := db.QueryRow(t.Context(), `select coalesce(array_agg(relation || ' ' || privilege), '{}')
		from unnest(array['epochfence.outbox_entry', 'epochfence.outbox_row']) relation,
			unnest(array['select', 'insert', 'update', 'delete', 'truncate', 'references', 'trigger']) privilege
		where has_table_privilege($1, relation, privilege)
			or privilege in ('select', 'insert', 'update', 'references') and has_any_column_privilege($1, relation, privilege)`, role).Scan(&has)
	if err != nil || len(has) > 0 {
		t.Errorf("role %s has the privileges %q, %v", role, has, err)
	}
}

func TestAReaderListsEntriesAndSeesNoSecretAndDoesNothing(t *testing.T) {
	t.Parallel()
	d := pgtest.Start(t)
	newEntries(t, d, 1)
	reader := newPerson(t, d, pgsink.GrantReaderSQL)
	listed, err := reader.op.OutboxEntries(t.Context(), operate.OutboxQuery{})
	if err != nil || len(listed) != 1 {
		t.Fatal(listed, err)
	}
	want := operate.OutboxEntry{
		ID: listed[0].ID, Partition: ours, Offset: 7, Key: "k", Scope: "s", IdempotencyKey: "key 0", Method: "POST", URL: "http://host", AddedAt: listed[0].AddedAt,
	}
	if !reflect.DeepEqual(listed[0], want) {
		t.Errorf("listed: %+v, want %+v", listed[0], want)
	}
	_, err = reader.op.OutboxEntry(t.Context(), listed[0].ID)
	errs := map[string]error{"shown": err}
	for _, kind := range []operate.OutboxKind{operate.OutboxRetry, operate.OutboxDiscard} {
		errs[string(kind)] = reader.op.DoOutbox(t.Context(), operate.OutboxAct{Kind: kind, Seen: listed[0], By: "anna", Reason: "test"})
	}
	for what, err := range errs {
		if !errors.Is(err, pgsink.ErrPermission) {
			t.Errorf("%s: %v", what, err)
		}
	}
	wantNoPrivilege(t, d.Superuser(t), reader.role)
	wantDenied(t, reader.pool, `select epochfence.contents('outbox', '{1}')`)
	wantDenied(t, reader.pool, `select epochfence.act_on_row('outbox', 1, 0, true, '', '', '', 0, '', '', '', '', 0, 0, 'outbox-discard', 'because', 'anna', '{}')`)
	if again, err := reader.op.OutboxEntries(t.Context(), operate.OutboxQuery{}); err != nil || !reflect.DeepEqual(again, listed) {
		t.Errorf("it has become %+v, %v", again, err)
	}
}

func TestAnOperatorActsOnEntriesThroughFunctionsAlone(t *testing.T) {
	t.Parallel()
	d := pgtest.Start(t)
	admin := d.Superuser(t)
	newEntries(t, d, 2)
	anna := newPerson(t, d, pgsink.GrantOperatorSQL)
	wantNoPrivilege(t, admin, anna.role)
	wantDenied(t, anna.pool, `select epochfence.put('entry', 0, 0, false, '', '', '', 0, 1, 0, 'outbox-discard', 'because', 'anna', '{}', null, null, null)`)
	listed, err := anna.op.OutboxEntries(t.Context(), operate.OutboxQuery{})
	if err != nil || len(listed) != 2 {
		t.Fatal(listed, err)
	}

	// What the function refuses, also of a program without package operate.
	const discard, retry = "outbox-discard", "outbox-retry"
	e, other := listed[0], ours
	other.Number++
	for _, c := range []struct {
		what, code string
		kind       string
		remove     bool
		partition  epoch.Partition
		key, state string
		by, reason string
	}{
		{"another key", "XF015", "outbox", true, ours, "key 1", discard, "anna", "r"},
		{"another key", "XF015", "outbox", false, ours, "key 1", retry, "anna", "r"},
		{"another partition", "XF015", "outbox", true, other, "key 0", discard, "anna", "r"},
		{"another partition", "XF015", "outbox", false, other, "key 0", retry, "anna", "r"},
		{"a discard that is recorded as a retry", "XF013", "outbox", true, ours, "key 0", retry, "anna", "r"},
		{"a retry that is recorded as a discard", "XF013", "outbox", false, ours, "key 0", discard, "anna", "r"},
		{"a discard that is recorded as a rewind", "XF013", "outbox", true, ours, "key 0", "rewind", "anna", "r"},
		{"an entry as a dead letter", "XF013", "dead-letter", true, ours, "key 0", discard, "anna", "r"},
		{"an entry of the audit log", "XF013", "entry", true, ours, "key 0", discard, "anna", "r"},
		{"nobody", "XF013", "outbox", true, ours, "key 0", discard, " ", "r"},
		{"no reason", "XF013", "outbox", true, ours, "key 0", discard, "anna", ""},
	} {
		_, err := anna.pool.Exec(t.Context(), "select epochfence.act_on_row($1, $2, 0, $3, $4, $5, $6, $7, 'requested', '', '', '', 0, 0, $8, $9, $10, '{}')",
			c.kind, e.ID, c.remove, c.key, c.partition.Group, c.partition.Topic, c.partition.Number, c.state, c.reason, c.by)
		if pg, ok := errors.AsType[*pgconn.PgError](err); !ok || pg.Code != c.code {
			t.Errorf("%s, removed %t: %v, want %s", c.what, c.remove, err, c.code)
		}
	}
	again, err := anna.op.OutboxEntries(t.Context(), operate.OutboxQuery{})
	log, errLog := anna.op.History(t.Context(), operate.HistoryQuery{})
	if err != nil || errLog != nil || !reflect.DeepEqual(again, listed) || len(log) > 0 {
		t.Errorf("the entries are %+v, %v; the audit log is %+v, %v", again, err, log, errLog)
	}

	whole, err := anna.op.OutboxEntry(t.Context(), e.ID)
	if err != nil || whole.URL != "http://host/secret" || whole.Header.Get("Secret") != "secret" || string(whole.Body) != "secret" {
		t.Errorf("shown: %+v, %v", whole, err)
	}
	for _, kind := range []operate.OutboxKind{operate.OutboxRetry, operate.OutboxDiscard} {
		if err := anna.op.DoOutbox(t.Context(), operate.OutboxAct{Kind: kind, Seen: e, By: "anna", Reason: "test"}); err != nil {
			t.Error(err)
		}
		e = listed[1]
	}
	left, err := anna.op.OutboxEntries(t.Context(), operate.OutboxQuery{})
	if err != nil || len(left) != 1 || left[0].ID != listed[0].ID || !left[0].RetryRequested {
		t.Errorf("left: %+v, %v", left, err)
	}
	log, err = anna.op.History(t.Context(), operate.HistoryQuery{Partition: &ours})
	if err != nil || len(log) != 2 || log[0].Kind != operate.DecidedOutboxDiscard || log[0].Entry != listed[1].ID || log[0].Role != anna.role {
		t.Errorf("the audit log is %+v, %v", log, err)
	}
}
