package main

import (
	"database/sql"
	"path/filepath"
	"testing"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/consumertest"
	"github.com/epochfence/epochfence/sinks/sqlsink"
)

func TestTheEffectsOfPayAreExactlyOnce(t *testing.T) {
	db, err := sql.Open("sqlite", filepath.Join(t.TempDir(), "payments.db")+"?_pragma=journal_mode(wal)&_pragma=busy_timeout(10000)")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	if err := sqlsink.Migrate(t.Context(), db, sqlsink.SQLite, sqlsink.Options{}); err != nil {
		t.Fatal(err)
	}
	if _, err := db.Exec(`CREATE TABLE paid (account TEXT, payment TEXT)`); err != nil {
		t.Fatal(err)
	}
	sink, err := sqlsink.Open(t.Context(), db, sqlsink.SQLite, sqlsink.Options{})
	if err != nil {
		t.Fatal(err)
	}
	messages := []consumer.Message{{Key: []byte("alice"), Value: []byte("10")}, {Key: []byte("bob"), Value: []byte("20")}, {Key: []byte("alice"), Value: []byte("30")}}
	consumertest.Check(t, sink, consumer.Each(pay).OnFailure(sink.DeadLetter), messages, consumertest.SQLite(db), consumertest.Options{})
}
