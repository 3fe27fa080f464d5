package pgsink_test

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/sinks/pgsink"
)

// Values that panic when pgx encodes them.
type (
	panicsInJSON  struct{}
	panicsInText  struct{}
	panicsInValue struct{}
	panicsInInt   struct{}
	panicsLater   struct{ asked *int }
)

func (panicsInJSON) MarshalJSON() ([]byte, error)          { panic("boom") }
func (panicsInText) TextValue() (pgtype.Text, error)       { panic("boom") }
func (panicsInValue) Value() (driver.Value, error)         { panic("boom") }
func (panicsInInt) Int64Value() (v pgtype.Int8, err error) { panic("boom") }
func (p panicsLater) Value() (driver.Value, error) {
	if *p.asked++; *p.asked > 1 {
		panic("boom")
	}
	return "1", nil
}

// hostileError is an error whose methods panic.
type hostileError struct{}

func (hostileError) Error() string { panic("Error") }
func (hostileError) Is(error) bool { panic("Is") }
func (hostileError) As(any) bool   { panic("As") }

type failsHostile struct{ err error }

func (f failsHostile) Value() (driver.Value, error) { return nil, f.err }

type failingRows struct{ err error }

func (failingRows) Next() bool             { return false }
func (failingRows) Values() ([]any, error) { return nil, nil }
func (r failingRows) Err() error           { return r.err }

// childVar is set in a process of tests that may end, and must not end this one.
const childVar = "EPOCHFENCE_TEST_CHILD"

// inChild runs the test in a process of its own, and reports whether this is not that one:
// what kills the process then fails the test.
func inChild(t *testing.T) bool {
	t.Helper()
	if os.Getenv(childVar) != "" {
		return false
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$", "-test.timeout=5m")
	cmd.Env = append(os.Environ(), childVar+"=1")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("its process ended: %v\n%s", err, out[:min(len(out), 4000)])
	}
	return true
}

// TestAValueThatPanicsInACopyPanicsInItsHandler: and not on a goroutine where nobody can
// recover, which ends the process.
func TestAValueThatPanicsInACopyPanicsInItsHandler(t *testing.T) {
	t.Parallel()
	if inChild(t) {
		return
	}
	r := newRig(t)
	r.sql("create table docs (doc jsonb, word text, n bigint, tags text[]); grant insert, select on docs to " + r.role)
	for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeCacheStatement, pgx.QueryExecModeExec} {
		s := r.openOn(r.pool(func(c *pgxpool.Config) { c.ConnConfig.DefaultQueryExecMode = mode }))
		seed(t, s, orders)
		f := claim(t, s, orders, 5)
		asked := 0
		for name, row := range map[string][]any{
			"MarshalJSON":          {panicsInJSON{}, "w", 1, nil},
			"MarshalJSON, within":  {map[string]any{"a": []any{panicsInJSON{}}}, "w", 1, nil},
			"TextValue":            {nil, panicsInText{}, 1, nil},
			"TextValue, within":    {nil, "w", 1, []panicsInText{{}}},
			"Value":                {nil, panicsInValue{}, 1, nil},
			"Value, another time":  {nil, panicsLater{&asked}, panicsLater{&asked}, nil},
			"Int64Value":           {nil, "w", panicsInInt{}, nil},
			"an error that panics": {nil, failsHostile{hostileError{}}, 1, nil},
			"an error that is nil": {nil, failsHostile{(*fs.PathError)(nil)}, 1, nil},
			"a wrapped one":        {nil, failsHostile{fmt.Errorf("x: %w", hostileError{})}, 1, nil},
		} {
			failed := func() (failed bool) {
				defer func() { failed = recover() != nil || failed }()
				return s.Commit(t.Context(), advance(f, 1), epoch.TxOptions{}, func(ctx context.Context, tx pgsink.Tx) error {
					_, err := tx.CopyFrom(ctx, pgx.Identifier{"docs"}, []string{"doc", "word", "n", "tags"}, pgx.CopyFromRows([][]any{{nil, "w", 1, nil}, row}))
					return err
				}) != nil
			}()
			if !failed {
				t.Errorf("%v, %s: it was committed", mode, name)
			}
			if now, err := epoch.FenceOf(t.Context(), s, orders); err != nil || now != f {
				t.Fatalf("%v, %s: the fence is %+v, %v", mode, name, now, err)
			}
		}
		for _, own := range []error{hostileError{}, (*fs.PathError)(nil), errors.New("no rows today")} {
			err := s.Commit(t.Context(), advance(f, 1), epoch.TxOptions{}, func(ctx context.Context, tx pgsink.Tx) error {
				_, err := tx.CopyFrom(ctx, pgx.Identifier{"docs"}, []string{"word"}, failingRows{own})
				return err
			})
			if err == nil || len(err.Error()) == 0 {
				t.Errorf("%v: err = %v", mode, err)
			}
		}
		err := s.Commit(t.Context(), advance(f, 1), epoch.TxOptions{}, func(ctx context.Context, tx pgsink.Tx) error {
			var rows [][]any
			for i := range 3000 { // several times what is sent at once
				rows = append(rows, []any{map[string]int{"n": i}, strings.Repeat("w", i%100), fmt.Sprint(i), []string{"a", "b"}})
			}
			n, err := tx.CopyFrom(ctx, pgx.Identifier{"docs"}, []string{"doc", "word", "n", "tags"}, pgx.CopyFromRows(rows))
			if n != 3000 {
				t.Errorf("%v: %d rows, %v", mode, n, err)
			}
			return err
		})
		if err != nil {
			t.Fatalf("%v: %v", mode, err)
		}
	}
	var sum, rows int
	if err := r.reader.QueryRow(t.Context(), "select sum((doc ->> 'n')::int + n), count(*) from docs where tags = '{a,b}'").Scan(&sum, &rows); err != nil || rows != 6000 || sum != 4*2999*3000/2 {
		t.Errorf("%d rows, sum %d, %v", rows, sum, err)
	}
}

// day is a date as a text, of a type that pgx does not know.
type day string

func (d day) TextValue() (pgtype.Text, error) {
	return pgtype.Text{String: string(d), Valid: true}, nil
}

// TestACopyTakesTextsForWhatIsNoText as pgx's own does.
func TestACopyTakesTextsForWhatIsNoText(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.sql("create table texts (at date, tags int[], doc jsonb); grant insert, select on texts to " + r.role)
	s := r.open()
	seed(t, s, orders)
	must(t, s.Commit(t.Context(), advance(claim(t, s, orders, 5), 1), epoch.TxOptions{}, func(ctx context.Context, tx pgsink.Tx) error {
		_, err := tx.CopyFrom(ctx, pgx.Identifier{"texts"}, []string{"at", "tags", "doc"}, pgx.CopyFromRows([][]any{
			{"2026-01-02", "{{1,2},{3,4}}", `{"a": 1}`}, {day("2026-01-03"), nil, nil},
		}))
		return err
	}))
	var got string
	must(t, r.reader.QueryRow(t.Context(), "select string_agg(concat_ws(' ', at, tags, doc), ', ' order by at) from texts").Scan(&got))
	if want := `2026-01-02 {{1,2},{3,4}} {"a": 1}, 2026-01-03`; got != want {
		t.Errorf("copied %s; want %s", got, want)
	}
}

// copyTracer counts what it is told of COPYs, and of what they did.
type copyTracer struct{ begun, rows int64 }

func (c *copyTracer) TraceCopyFromStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceCopyFromStartData) context.Context {
	c.begun++
	return ctx
}

func (c *copyTracer) TraceCopyFromEnd(_ context.Context, _ *pgx.Conn, d pgx.TraceCopyFromEndData) {
	c.rows += d.CommandTag.RowsAffected()
}

func (*copyTracer) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	return ctx
}
func (*copyTracer) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// TestACopyIsTraced as pgx's own is.
func TestACopyIsTraced(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var traced copyTracer
	s := r.openOn(r.pool(func(c *pgxpool.Config) { c.ConnConfig.Tracer = &traced }))
	seed(t, s, orders)
	must(t, s.Commit(t.Context(), advance(claim(t, s, orders, 5), 1), epoch.TxOptions{}, func(ctx context.Context, tx pgsink.Tx) error {
		_, err := tx.CopyFrom(ctx, pgx.Identifier{"effects"}, []string{"list", "value"}, pgx.CopyFromRows([][]any{{"x", "1"}, {"x", "2"}}))
		return err
	}))
	if traced != (copyTracer{begun: 1, rows: 2}) {
		t.Errorf("traced %+v; want one COPY of two rows", traced)
	}
}

// TestACopyAfterItsTableHasChangedFailsOnce: the types of columns are remembered.
func TestACopyAfterItsTableHasChangedFailsOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.sql("create table docs (n int); grant insert, select on docs to " + r.role)
	s := r.openOn(r.pool(func(c *pgxpool.Config) { c.MaxConns = 1 }))
	seed(t, s, orders)
	f := claim(t, s, orders, 5)
	copies := func() error {
		err := s.Commit(t.Context(), advance(f, 1), epoch.TxOptions{}, func(ctx context.Context, tx pgsink.Tx) error {
			_, err := tx.CopyFrom(ctx, pgx.Identifier{"docs"}, []string{"n"}, pgx.CopyFromRows([][]any{{7}}))
			return err
		})
		if err == nil {
			f.Next++
		}
		return err
	}
	if err := copies(); err != nil {
		t.Fatal(err)
	}
	r.sql("alter table docs alter n type bigint")
	first := copies()
	if err := copies(); err != nil {
		t.Errorf("failed again, after %v: %v", first, err)
	}
}

// TestAnArgumentsErrorThatPanicsIsTheStatements: it is returned to the handler, and asked
// nothing.
func TestAnArgumentsErrorThatPanicsIsTheStatements(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := r.open()
	seed(t, s, orders)
	const insert = "insert into effects (list, value) values ('x', $1::text)"
	for name, bad := range map[string]error{"its methods panic": hostileError{}, "a typed nil": (*fs.PathError)(nil)} {
		for how, use := range map[string]func(ctx context.Context, tx pgsink.Tx) error{
			"Exec": func(ctx context.Context, tx pgsink.Tx) error {
				_, err := tx.Exec(ctx, insert, failsHostile{bad})
				return err
			},
			"Query": func(ctx context.Context, tx pgsink.Tx) error {
				rows, err := tx.Query(ctx, insert, failsHostile{bad})
				rows.Close()
				return err
			},
			"QueryRow": func(ctx context.Context, tx pgsink.Tx) error {
				return tx.QueryRow(ctx, insert+" returning 1", failsHostile{bad}).Scan(new(int))
			},
			"SendBatch": func(ctx context.Context, tx pgsink.Tx) error {
				b := &pgx.Batch{}
				b.Queue(insert, failsHostile{bad})
				return tx.SendBatch(ctx, b).Close()
			},
		} {
			for _, late := range []bool{true, false} {
				f := claim(t, s, orders, 5)
				err := s.Commit(t.Context(), advance(f, 1), epoch.TxOptions{}, func(ctx context.Context, tx pgsink.Tx) error {
					if !late {
						if err := put(ctx, tx, "x", "1"); err != nil {
							return err
						}
					}
					return use(ctx, tx)
				})
				if err == nil || err.Error() == "" {
					t.Errorf("%s, %s: err = %v", name, how, err)
				}
			}
		}
		f := claim(t, s, orders, 5)
		err := s.Queued().Commit(t.Context(), advance(f, 1), epoch.TxOptions{}, func(ctx context.Context, q *pgsink.Queue) error {
			_, err := q.Exec(ctx, insert, failsHostile{bad})
			return err
		})
		var statement *pgsink.StatementError
		if !errors.As(err, &statement) || statement.Number != 1 || statement.Error() == "" {
			t.Errorf("%s, queued: err = %v", name, err)
		}
	}
	r.wantList("x")
	f := claim(t, s, orders, 5)
	if err := s.Commit(t.Context(), advance(f, 1), epoch.TxOptions{}, putting("x", "1")); err != nil {
		t.Error(err)
	}
}
