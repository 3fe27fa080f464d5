package sqloutbox_test

import (
	"cmp"
	"database/sql"
	"errors"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	_ "modernc.org/sqlite"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/migrations"
	"github.com/epochfence/epochfence/operate"
	"github.com/epochfence/epochfence/outbox"
	"github.com/epochfence/epochfence/outbox/sqloutbox"
	"github.com/epochfence/epochfence/sinks/sqlsink"
)

func open(t *testing.T) *sql.DB {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+filepath.Join(t.TempDir(), "app.db")+"?_pragma=journal_mode(WAL)")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db
}

func wantError(t *testing.T, err error, says string) {
	t.Helper()
	if err == nil || !strings.HasPrefix(err.Error(), "sqloutbox: ") || !strings.Contains(err.Error(), says) {
		t.Errorf("err = %v, want one of sqloutbox that says %q", err, says)
	}
}

func TestOpenRefusesTablesOfAnotherVersion(t *testing.T) {
	for _, prefix := range []string{"", "p_"} {
		db := open(t)
		exec := func(sql string) {
			t.Helper()
			if _, err := db.ExecContext(t.Context(), sql); err != nil {
				t.Fatal(err)
			}
		}
		refused := func(want error, says string) {
			t.Helper()
			_, err := sqloutbox.Open[*sqlsink.Tx](t.Context(), db, sqloutbox.SQLite, sqloutbox.Options{TablePrefix: prefix})
			wantError(t, err, says)
			if !errors.Is(err, want) {
				t.Errorf("err = %v, want %v", err, want)
			}
		}
		of := sqlsink.Options{TablePrefix: prefix}
		refused(migrations.ErrNotMigrated, "run sqlsink.Migrate")
		ms, err := sqlsink.Migrations(sqlsink.SQLite, of)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range ms[:len(ms)-1] {
			exec(m.SQL)
			refused(migrations.ErrOlder, "run sqlsink.Migrate")
		}
		tables := cmp.Or(prefix, "epochfence_")
		exec(`INSERT INTO ` + tables + `outbox_entry (group_name, topic, number, order_key, scope, idempotency_key, method, url, header, body)
			VALUES ('g', 't', 0, 'k', 's', 'of an earlier version', 'POST', 'http://host/', '', x'')`)
		if err := sqlsink.Migrate(t.Context(), db, sqlsink.SQLite, of); err != nil {
			t.Fatal(err)
		}
		var offset int64
		if err := db.QueryRow(`SELECT message_offset FROM ` + tables + `outbox_entry`).Scan(&offset); err != nil || offset != -1 {
			t.Errorf("an entry of an earlier version has the offset %d, %v; want -1", offset, err)
		}
		if _, err := sqloutbox.Open[*sqlsink.Tx](t.Context(), db, sqloutbox.SQLite, sqloutbox.Options{TablePrefix: prefix}); err != nil {
			t.Error(err)
		}
		exec(`INSERT INTO ` + tables + `migration (version, name) VALUES (1000, 'of another major number')`)
		refused(migrations.ErrNewer, "update the program")
	}
	_, err := sqloutbox.Open[*sqlsink.Tx](t.Context(), nil, sqloutbox.SQLite, sqloutbox.Options{TablePrefix: "a; b"})
	wantError(t, err, "Options.TablePrefix")
}

// Another process may have changed an entry since the operator's read it, which package operate cannot see.
func TestAnActOnAnEntryThatIsNotAsSeenChangesNothing(t *testing.T) {
	db := open(t)
	if err := sqlsink.Migrate(t.Context(), db, sqlsink.SQLite, sqlsink.Options{}); err != nil {
		t.Fatal(err)
	}
	store, err := sqloutbox.Open[*sql.Tx](t.Context(), db, sqloutbox.SQLite, sqloutbox.Options{})
	if err != nil {
		t.Fatal(err)
	}
	sink, err := sqlsink.Open(t.Context(), db, sqlsink.SQLite, sqlsink.Options{})
	if err != nil {
		t.Fatal(err)
	}
	op := operate.On(sink)
	p := epoch.Partition{Group: "billing", Topic: "orders", Number: 3}
	tx, err := db.BeginTx(t.Context(), nil)
	if err == nil {
		err = errors.Join(store.Add(t.Context(), tx, epoch.Message{Partition: p, Offset: 7}, outbox.Entry{IdempotencyKey: "a", URL: "http://host/"}), tx.Commit())
	}
	if err != nil {
		t.Fatal(err)
	}
	before, err := op.OutboxEntries(t.Context(), operate.OutboxQuery{})
	if err != nil || len(before) != 1 || before[0].Offset != 7 {
		t.Fatal(before, err)
	}
	id, other := before[0].ID, p
	other.Number++
	for what, r := range map[string]operate.Row{
		"another key":       {ID: id, Name: "b", Partition: p},
		"another ID":        {ID: id + 1, Name: "a", Partition: p},
		"another partition": {ID: id, Name: "a", Partition: other},
	} {
		r.Kind, r.State = operate.KindOutbox, operate.StateRequested
		for _, remove := range []bool{true, false} {
			record := operate.EntryOf(operate.Decision{Kind: operate.DecidedOutboxRetry, Partition: p, By: "anna", Reason: "r"})
			if err := sink.Write(t.Context(), record, operate.Change{Row: r, Remove: remove}); !errors.Is(err, operate.ErrRowChanged) {
				t.Errorf("%s, removed %t: %v", what, remove, err)
			}
		}
	}
	after, err := op.OutboxEntries(t.Context(), operate.OutboxQuery{})
	log, errLog := op.History(t.Context(), operate.HistoryQuery{})
	if err != nil || errLog != nil || !reflect.DeepEqual(after, before) || len(log) > 0 {
		t.Errorf("the entries are %+v, %v; the audit log is %+v, %v", after, err, log, errLog)
	}
}
