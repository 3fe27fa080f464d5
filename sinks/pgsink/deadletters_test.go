package pgsink_test

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/operate"
	"github.com/epochfence/epochfence/sinks/pgsink"
)

// hostile is a message of bytes that are not text.
var hostile = epoch.Message{
	Partition: orders, Offset: 7,
	Key:   []byte("\xff\x00key"),
	Value: nil,
	Headers: []epoch.Header{
		{Key: "trace", Value: []byte("1")},
		{Key: "\xfe\x00", Value: []byte{}},
		{Key: "trace", Value: nil},
		{Key: "", Value: []byte(`{"quoted, \"and\" NULL}`)},
	},
	Time: time.UnixMilli(1700000000123),
}

var errHostile = errors.New("bad \x00 byte and \xff and " + strings.Repeat("数", 1<<15))

func TestADeadLetterKeepsTheMessageByteForByte(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for name, mode := range modes {
		s := r.openOn(r.pool(mode))
		p := orders
		p.Group = "group of " + name
		seed(t, s, p)
		f := claim(t, s, p, 5)
		for i, form := range []func() error{
			func() error {
				return s.Commit(t.Context(), advance(f, 1), epoch.TxOptions{}, func(ctx context.Context, tx pgsink.Tx) error {
					return s.DeadLetter(ctx, tx, of(f, hostile), f.Epoch, errHostile)
				})
			},
			func() error {
				return s.Queued().Commit(t.Context(), advance(f, 1), epoch.TxOptions{}, func(ctx context.Context, q *pgsink.Queue) error {
					return s.Queued().DeadLetter(ctx, q, of(f, hostile), f.Epoch, errHostile)
				})
			},
		} {
			if err := form(); err != nil {
				t.Fatalf("%s, form %d: %v", name, i+1, err)
			}
			f.Next++
			wantHostile(r, p.Group, i+1)
		}
	}
}

// of is m as a message of the fence's partition.
func of(f epoch.Fence, m epoch.Message) epoch.Message {
	m.Partition = f.Partition
	return m
}

func wantHostile(r *rig, group string, n int) {
	r.Helper()
	var (
		got            epoch.Message
		headers        string
		text           string
		ep, number, at int64
		count          int
	)
	err := r.admin.QueryRow(r.Context(), `
		select count(*) over (), topic, partition, message_offset, epoch, (body ->> 'time')::timestamptz, message_key, message_value, message_headers, cause
		from epochfence.fence_ledger where kind = 'dead-letter' and group_name = $1 order by id desc limit 1`, group).
		Scan(&count, &got.Partition.Topic, &number, &at, &ep, &got.Time, &got.Key, &got.Value, &headers, &text)
	if err != nil {
		r.Fatal(err)
	}
	if count != n || got.Partition.Topic != "orders" || number != 3 || at != 7 || ep != 5 || !got.Time.Equal(hostile.Time) ||
		!bytes.Equal(got.Key, hostile.Key) || got.Value != nil {
		r.Fatalf("%s: %d letters, the last is %+v", group, count, got)
	}
	if headers != `[{"key":"trace","value":"MQ=="},{"key_bytes":"/gA=","value":""},{"key":"trace","value":null},{"key":"","value":"eyJxdW90ZWQsIFwiYW5kXCIgTlVMTH0="}]` {
		r.Errorf("%s: the headers are %s", group, headers)
	}
	if !strings.HasPrefix(text, "bad \uFFFD byte and \uFFFD and 数") || len(text) > operate.MaxText || len(text) < operate.MaxText-3 {
		r.Errorf("%s: the error's text has %d bytes and begins %.40q", group, len(text), text)
	}
}

func TestADeadLetterCommitsWithTheAdvanceOrNotAtAll(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := r.open()
	seed(t, s, orders)
	f := claim(t, s, orders, 5)
	own := errors.New("after all")
	err := s.Commit(t.Context(), advance(f, 1), epoch.TxOptions{}, func(ctx context.Context, tx pgsink.Tx) error {
		if err := s.DeadLetter(ctx, tx, hostile, f.Epoch, errHostile); err != nil {
			return err
		}
		return own
	})
	want(t, err, own)
	var n int
	if err := r.admin.QueryRow(t.Context(), "select count(*) from epochfence.fence_ledger where kind = 'dead-letter'").Scan(&n); err != nil || n != 0 {
		t.Fatalf("%d dead letters, %v", n, err)
	}
}

func TestADeadLetterBelongsToItsTransaction(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := r.open()
	seed(t, s, orders)
	f := claim(t, s, orders, 5)
	elsewhere := hostile
	elsewhere.Partition.Number = 4
	err := s.Commit(t.Context(), advance(f, 1), epoch.TxOptions{}, func(ctx context.Context, tx pgsink.Tx) error {
		if err := s.DeadLetter(ctx, struct{ pgsink.Tx }{tx}, hostile, 5, nil); err == nil || !strings.Contains(err.Error(), "not the transaction") {
			t.Errorf("through another Tx: err = %v", err)
		}
		return s.DeadLetter(ctx, tx, elsewhere, 5, nil)
	})
	if err == nil || !strings.Contains(err.Error(), "this transaction is not under a claim of that partition") {
		t.Errorf("a message of another partition: err = %v", err)
	}
}

func TestADeadLettersTimeMayBeOutOfRange(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := r.open()
	seed(t, s, orders)
	f := claim(t, s, orders, 5)
	for _, at := range []time.Time{{}, time.UnixMilli(1 << 62), time.UnixMilli(-1 << 62)} {
		m := hostile
		m.Time = at
		err := s.Commit(t.Context(), advance(f, 1), epoch.TxOptions{}, func(ctx context.Context, tx pgsink.Tx) error {
			return s.DeadLetter(ctx, tx, m, f.Epoch, nil)
		})
		if err != nil {
			t.Errorf("%v: %v", at, err)
		}
		f.Next++
	}
	for i, l := range r.letters(r.operator(t)) {
		if want := []time.Time{{}, time.UnixMilli(1 << 62), time.UnixMilli(-1 << 62)}[i]; !l.Message.Time.Equal(want) {
			t.Errorf("dead letter %d is of %v; want %v", i, l.Message.Time, want)
		}
	}
}

// modes are the ways in which pgx may send a statement.
var modes = map[string]func(*pgxpool.Config){
	"cache_statement": mode(pgx.QueryExecModeCacheStatement),
	"cache_describe":  mode(pgx.QueryExecModeCacheDescribe),
	"describe_exec":   mode(pgx.QueryExecModeDescribeExec),
	"exec":            mode(pgx.QueryExecModeExec),
	"simple_protocol": mode(pgx.QueryExecModeSimpleProtocol),
}

func mode(m pgx.QueryExecMode) func(*pgxpool.Config) {
	return func(c *pgxpool.Config) { c.ConnConfig.DefaultQueryExecMode = m }
}
