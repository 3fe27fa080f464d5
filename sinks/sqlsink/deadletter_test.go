package sqlsink_test

import (
	"context"
	"database/sql"
	"errors"
	"testing"
	"time"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/sinks/sqlsink"
)

func TestADeadLetterKeepsWhatIsNeededToSendTheMessageAgain(t *testing.T) {
	db := open(t, newFile(t))
	s := newSink(t, db, sqlsink.Options{})
	f := claim(t, s, 7)
	m := epoch.Message{
		Partition: f.Partition, Offset: 0, Key: []byte("\xff\x00key"), Value: nil,
		Headers: []epoch.Header{{Key: "a", Value: []byte("\xfe")}, {Key: "a", Value: nil}, {Key: "\xff\x00", Value: []byte{}}},
		Time:    time.Date(2026, 3, 4, 5, 6, 7, 8000, time.FixedZone("", 3600)),
	}
	err := s.Commit(t.Context(), advance(f, 1), epoch.TxOptions{}, func(ctx context.Context, tx *sqlsink.Tx) error {
		return s.DeadLetter(ctx, tx, m, f.Epoch, errors.New("it's \"poison\""))
	})
	if err != nil {
		t.Fatal(err)
	}
	wantNext(t, s, 1)
	var (
		group, topic, headers, written, cause, deadAt string
		number                                        int32
		offset, e                                     int64
		key, value                                    []byte
		valueKind                                     string
	)
	err = db.QueryRow(`SELECT group_name, topic, number, message_offset, epoch, message_key, message_value, typeof(message_value),
		message_headers, json_extract(body, '$.time'), cause, written_at FROM epochfence_ledger WHERE kind = 'dead-letter'`).Scan(&group, &topic, &number, &offset, &e,
		&key, &value, &valueKind, &headers, &written, &cause, &deadAt)
	if err != nil {
		t.Fatal(err)
	}
	if group != "billing" || topic != "orders" || number != 0 || offset != 0 || e != 7 || string(key) != "\xff\x00key" ||
		valueKind != "null" || headers != `[{"key":"a","value":"/g=="},{"key":"a","value":null},{"key_bytes":"/wA=","value":""}]` ||
		written != "2026-03-04T04:06:07.000008Z" || cause != `it's "poison"` {
		t.Errorf("dead letter: %q %q %d %d %d %q %s %s %s %q", group, topic, number, offset, e, key, valueKind, headers, written, cause)
	}
	if at, err := time.Parse(time.RFC3339Nano, deadAt); err != nil || time.Since(at).Abs() > time.Hour {
		t.Errorf("put aside at %q, %v", deadAt, err)
	}
}

func TestADeadLetterOfARefusedTransactionIsRolledBack(t *testing.T) {
	db := open(t, newFile(t))
	s := newSink(t, db, sqlsink.Options{})
	old := claim(t, s, 7)
	claim(t, s, 8)
	err := s.Commit(t.Context(), advance(old, 1), epoch.TxOptions{}, func(ctx context.Context, tx *sqlsink.Tx) error {
		return s.DeadLetter(ctx, tx, epoch.Message{Partition: old.Partition}, old.Epoch, errors.New("poison"))
	})
	if !errors.Is(err, epoch.ErrStale) {
		t.Errorf("err = %v, want ErrStale", err)
	}
	var n int
	if err := db.QueryRow(`SELECT count(*) FROM epochfence_ledger WHERE kind = 'dead-letter'`).Scan(&n); err != nil || n != 0 {
		t.Errorf("%d dead letters, %v", n, err)
	}
}

func TestADeadLetterOfAnotherPartitionIsRefused(t *testing.T) {
	db := open(t, newFile(t))
	s := newSink(t, db, sqlsink.Options{})
	f := claim(t, s, 7)
	err := s.Commit(t.Context(), advance(f, 1), epoch.TxOptions{}, func(ctx context.Context, tx *sqlsink.Tx) error {
		return s.DeadLetter(ctx, tx, epoch.Message{Partition: epoch.Partition{Group: "billing", Topic: "orders", Number: 3}}, f.Epoch, errors.New("poison"))
	})
	wantError(t, err, "orders/3", "not under a claim of that partition")
}

// sqlc generates this interface for database/sql.
type dbtx interface {
	ExecContext(context.Context, string, ...interface{}) (sql.Result, error)
	PrepareContext(context.Context, string) (*sql.Stmt, error)
	QueryContext(context.Context, string, ...interface{}) (*sql.Rows, error)
	QueryRowContext(context.Context, string, ...interface{}) *sql.Row
}

var _ dbtx = (*sqlsink.Tx)(nil)
